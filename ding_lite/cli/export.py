"""``ding-lite export``: writes a trained policy to a file for other programs."""

from __future__ import annotations

from pathlib import Path

from ding_lite.cli.options import (
    PATH,
    POSITIVE,
    command,
    import_modules,
    json_option,
    option,
    print_json,
    print_table,
    run_argument,
    seed_option,
    stdout_to_stderr,
    trust_option,
)


@command(preload="ding_lite.tools.export")
@run_argument
@option(
    *("-o", "--output"),
    type=PATH,
    default="policy.onnx",
    metavar="FILE",
    help="the file, a .onnx or .pt2 (default: policy.onnx)",
)
@option(
    *("-n", "--observations"),
    type=POSITIVE,
    default=512,
    metavar="N",
    help="number of observations on which the file is compared with the policy (default: 512)",
)
@seed_option(default=0)
@trust_option
@json_option
def run(run: str, output: str, observations: int, seed: int, imports: tuple[str, ...], json: bool) -> None:
    """Writes a trained policy to an ONNX file, or to one of torch.export.

    The file acts without ding_lite: policy.onnx for onnxruntime and others, or policy.pt2 for
    torch.export.load. It takes observations as the environment returns them and puts out greedy actions
    as the environment takes them, in batches of any size. It holds the scale of observations, action
    masks, the hidden state and the bounds of actions.

    Plays the environment of the run and compares the file with the policy. If a number differs by more
    than 1e-5 (relative for numbers above 1), or a discrete action is another one, no file is written.
    Beside the file, policy.onnx.json names and describes its inputs and outputs. ONNX needs more packages:
    pip install "ding_lite[export]".
    """
    from ding_lite.tools.export import export_policy

    file = Path(output)
    with stdout_to_stderr():
        manifest = export_policy(
            run, file, observations=observations, seed=seed, trust=import_modules(imports)
        )
    if json:
        print_json(manifest)
        return
    of, parity = manifest["source"], manifest["parity"]
    print(f"{file} ({file.stat().st_size / 1000:,.0f} kB), described in {file}.json")
    print(
        f"{of['policy']} on {of['env_id']}, {of['checkpoint']} of {of['run']} at {of['env_step']:,} env steps"
    )
    ports = [(side, port) for side in ("input", "output") for port in manifest[f"{side}s"]]
    print_table(
        ["", "name", "dtype", "shape"],
        [[side, port["name"], port["dtype"], ", ".join(map(str, port["shape"]))] for side, port in ports],
    )
    print(f"on {parity['observations']} observations the largest difference is {parity['difference']:.1e}")
