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

    The file acts without ding_lite and torch, for example in onnxruntime. It takes observations as the
    environment returns them and puts out greedy actions as the environment takes them, in batches of any
    size. It holds the scale of observations, action masks, the hidden state and the bounds of actions.

    Plays the environment of the run and compares the file with the policy. If a number differs by more
    than 1e-5 (relative for numbers above 1), or a discrete action is another one, no file is written.
    Beside the file, policy.onnx.json names and describes its inputs and outputs. Needs more packages:
    pip install "ding_lite[export]".
    """
    from ding_lite.tools.export import export_policy

    trust = options.import_modules(imports)
    manifest = export_policy(run, output, trust=trust)
    of, parity = manifest["source"], manifest["parity"]
    print(f"{output} ({output.stat().st_size / 1000:,.0f} kB), described in {output}.json")
    print(
        f"{of['policy']} on {of['env_id']}, {of['checkpoint']} of {of['run']} at {of['env_step']:,} env steps"
    )
    print(f"on {parity['observations']} observations the largest difference is {parity['difference']:.1e}")
