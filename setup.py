"""Packaging: metadata, extras, and the configs, which are installed with the library."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Copies configs/ into the package, for ``ding-lite train -c cartpole_ppo`` after an install."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "ding_lite" / "_configs"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / "configs", target, ignore=shutil.ignore_patterns("__pycache__"))


EXTRAS = {
    "atari": ["ale-py>=0.11", "opencv-python-headless>=4.10"],
    "box2d": ["gymnasium[box2d]"],
    "envpool": ["envpool>=1.2"],
    "export": ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"],
    "minatar": ["minatar>=1.0.15"],  # its own needs are for its display; --no-deps does as well
    "minigrid": ["minigrid>=3.0"],
    "mujoco": ["gymnasium[mujoco]"],
    "plot": ["matplotlib>=3.10", "plotly>=6", "moviepy>=2", "gymnasium[classic-control]"],
    "sweep": ["matplotlib>=3.10", "optuna>=5"],
}
# For a contributor: what the daily tests, the linters and the site need.
TESTED = ("atari", "box2d", "minatar", "minigrid", "mujoco", "plot", "sweep")
EXTRAS["dev"] = [
    *(package for name in TESTED for package in EXTRAS[name]),
    *("hypothesis>=6.170", "pytest>=8", "pytest-xdist>=3", "setuptools>=77", "stable-baselines3>=2.7"),
    *("ruff>=0.14", "mypy>=1.18"),
    *("mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.30", "latex2mathml>=3.77"),
]

setup(
    name="ding_lite",
    version="0.1.0",
    description="PPO and PPG, correct and fast: launch a config, register a policy, embed the pipeline.",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["ding_lite", "ding_lite.*"]),
    package_data={"ding_lite": ["py.typed", "tools/templates/*/*.py"]},
    cmdclass={"build_py": BuildWithConfigs},
    install_requires=[
        "torch>=2.11",
        "gymnasium>=1.2.2",
        "numpy>=2.0",
        "easydict>=1.10",
        "DI-treetensor>=0.5.0",
        "tensorboardX>=2.6",
        "safetensors>=0.8",
        "filelock>=3.20.3",  # earlier ones empty what a link in the place of .lock points to
        "rich>=13",
        "click>=8.5",
        "threadpoolctl>=3.5",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["ding-lite=ding_lite.__main__:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
