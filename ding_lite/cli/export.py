"""``ding-lite export``: writes a trained policy to a file for other programs."""

from __future__ import annotations

from pathlib import Path

from ding_lite.cli import options


@options.command()
@options.run_argument
@options.option(
    "-o --output FILE",
    "an .onnx file (default: policy.onnx)",
    options.file_of(".onnx"),
    default="policy.onnx",
)
@options.trust_option
def run(run: Path, output: Path, imports: tuple[str, ...]) -> None:
    """Writes a trained policy to an ONNX file.

    The file acts without ding_lite and torch, for example in onnxruntime. Its inputs are observations as the
    environment returns them, its outputs greedy actions as the environment accepts them, in batches of any
    size. It contains the scale of observations, action masks, the hidden state, the bounds of actions, and
    the wrappers action_rescale and action_bins. Other wrappers are left out and listed. ONNX is the only
    format, since it runs in C++, Rust, C# and JavaScript, and torch no longer develops TorchScript.

    Plays the environment of the run and compares the file with the policy. If an action differs by more than
    1e-5 of its range, another number by more than 1e-5 of its size, or a discrete action at all, no file is
    written. Beside the file, policy.onnx.json describes its inputs and outputs. Needs more packages:
    pip install "ding_lite[export]".
    """
    from ding_lite.tools.export import export_policy

    manifest = export_policy(run, output, trust=options.import_modules(imports))
    of, parity, names = manifest["source"], manifest["parity"], ", ".join(manifest["leaves_out"])
    print(f"{output} ({output.stat().st_size / 1000:,.0f} kB), described in {output}.json")
    print(
        f"{of['policy']} on {of['env_id']}, {of['checkpoint']} of {of['run']} at {of['env_step']:,} env steps"
    )
    print(f"on {parity['observations']} observations the largest difference is {parity['difference']:.1e}")
    if names:
        print(f"the file leaves out: {names}. Apply what these wrappers do outside of it")
