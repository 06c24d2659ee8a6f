"""Packaging: metadata, extras, and the configs and templates, which are installed with the library."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithData(build_py):
    """Copies configs/ and templates/ into the package.

    So ``ding-lite train -c cartpole_ppo`` and ``ding-lite new`` work after ``pip install`` too.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("configs", "templates"):
            target = Path(self.build_lib) / "ding_lite" / f"_{name}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / name, target, ignore=shutil.ignore_patterns("__pycache__"))


EXTRAS = {
    "atari": ["ale-py>=0.11", "opencv-python-headless>=4.10"],
    "box2d": ["gymnasium[box2d]"],
    "envpool": ["envpool>=1.2"],
    "export": ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"],
    "minatar": ["minatar>=1.0.15"],  # its own needs are for its display; --no-deps does as well
    "minigrid": ["minigrid>=3.0"],
    "mlflow": ["mlflow-skinny>=3", "sqlalchemy>=2", "alembic>=1.10"],  # its web page needs mlflow itself
    "mujoco": ["gymnasium[mujoco]"],
    "classic": ["gymnasium[classic-control]"],
    "plot": ["matplotlib>=3.8", "plotly>=6"],
    "ray": ["ray>=2.60"],
    "sweep": ["optuna>=5"],
    "video": ["gymnasium[classic-control]", "moviepy>=2"],
    "wandb": ["wandb>=0.19.10"],
}
TESTED = ("atari", "box2d", "minatar", "minigrid", "mujoco", "plot", "sweep", "video")
TEST = [
    "pytest>=8",
    "pytest-xdist>=3",
    "setuptools>=77",
    "stable-baselines3>=2.7",
    *(p for e in TESTED for p in EXTRAS[e]),
]
# What benchmarks/throughput.py runs beside ours. Tianshou itself is installed with --no-deps (see the
# Makefile): it asks for an older pandas than the constraints have, and runs on theirs.
TIANSHOU_NEEDS = ["deepdiff>=7,<8", "h5py>=3.9", "numba>=0.60", "overrides>=7.4,<8", "pandas"]
TIANSHOU_NEEDS += ["pettingzoo>=1.22", "sensai-utils>=1.6", "tensorboard>=2.5"]
BENCH = ["stable-baselines3>=2.7", "sb3-contrib>=2.7", "torchrl>=0.14", *TIANSHOU_NEEDS]
BENCH += [p for e in ("atari", "mujoco", "envpool") for p in EXTRAS[e]]

# For `make docs`.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.30", "latex2mathml>=3.77"]

setup(
    name="ding_lite",
    version="0.1.0",
    description="PPO and PPG, correct and fast: launch a config, register a policy, embed the pipeline.",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["ding_lite", "ding_lite.*"]),
    package_data={"ding_lite": ["py.typed"]},
    cmdclass={"build_py": BuildWithData},
    install_requires=[
        "torch>=2.11",
        "gymnasium>=1.1",
        "numpy>=2.0",
        "easydict>=1.10",
        "DI-treetensor>=0.5.0",
        "tensorboardX>=2.6",
        "safetensors>=0.5",
        "filelock>=3.12",
        "rich>=13",
        "click>=8.5",
    ],
    extras_require={
        **EXTRAS,
        "test": TEST,
        "bench": BENCH,
        "docs": DOCS,
        "dev": [*TEST, "ruff>=0.14", "mypy>=1.18"],
    },
    entry_points={"console_scripts": ["ding-lite=ding_lite.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
