"""ones-slurm-runtime: the part of this tree that training environments need, as a wheel of its own.

What is said once for both distributions is read from the tree's setup.cfg.
"""

from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

TREE = Path("../..")  # setuptools runs this in its own folder, and wants relative paths
RUNTIME = "ones.slurm_ext.runtime"
COMMANDS = ("ones-run", "ones-order")
PARTLY = {"ones.slurm_ext": ["errors"]}  # of which only these modules are needed

read = ConfigParser()
read.read(TREE / "setup.cfg")
whole, options = read["metadata"], read["options"]
entries = [line for line in read["options.entry_points"]["console_scripts"].splitlines() if line]
packages = [name for name in options["packages"].split() if f"{name}.".startswith(f"{RUNTIME}.")]
numpy = [line for line in options["install_requires"].splitlines() if line.startswith("numpy")]

setup(
    name="ones-slurm-runtime",
    version=whole["version"],
    description="ONES for Slurm inside jobs: what training scripts import, and ones-run",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license=whole["license"],
    classifiers=[line for line in whole["classifiers"].splitlines() if line],
    python_requires=options["python_requires"],
    install_requires=numpy,
    packages=["ones", *packages],
    py_modules=[
        "ones.slurm_ext.__init__",
        *(f"{package}.{module}" for package, modules in PARTLY.items() for module in modules),
    ],
    package_dir={
        "ones": str(TREE),
        **{name: str(TREE / name.removeprefix("ones.").replace(".", "/")) for name in packages},
        **{name: str(TREE / name.removeprefix("ones.")) for name in PARTLY},
    },
    entry_points={
        "console_scripts": [line for line in entries if line.split("=")[0].strip() in COMMANDS]
    },
)
