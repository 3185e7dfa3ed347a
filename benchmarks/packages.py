"""Real packages to measure on: fetched by name into a temporary directory, never installed, never committed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

# Models, layers and losses of many kinds, written by many hands: 6,292 Python files, 2.5 million lines.
CORPUS = [
    *("timm", "transformers", "diffusers", "kornia", "x-transformers", "vit-pytorch", "monai", "torch-geometric"),
    *("e3nn", "torchvision"),
]

# Losses, attention, generative models, geometry, metrics: public packages of many sizes and hands. Of four only some
# directories, because the whole would outweigh all others; none: everything.
SURVEYED: dict[str, tuple[str, ...]] = {
    "entmax": (),
    "torchdiffeq": (),
    "torchsde": (),
    "local-attention": (),
    "performer-pytorch": (),
    "perceiver-pytorch": (),
    "rotary-embedding-torch": (),
    "pytorch-msssim": (),
    "focal-loss-torch": (),
    "focal-frequency-loss": (),
    "pytorch-focalloss": (),
    "unified-focal-loss-pytorch": (),
    "lpips": (),
    "piqa": (),
    "geomloss": (),
    "linear-attention-transformer": (),
    "vector-quantize-pytorch": (),
    "pytorch-wavelets": (),
    "e3nn": (),
    "x-transformers": (),
    "monai": ("monai/networks", "monai/losses"),
    "torch-geometric": ("torch_geometric/nn",),
    "denoising-diffusion-pytorch": (),
    "segmentation-models-pytorch": (),
    "pytorch-metric-learning": (),
    "vit-pytorch": (),
    "kornia": tuple(f"kornia/{part}" for part in ("losses", "geometry", "filters", "feature", "enhance", "color")),
    "torchmetrics": ("torchmetrics/functional",),
}
# What these packages import beside torch, numpy and pillow; torchvision and compiled extensions are left out, as they
# are missing on many machines too.
DEPENDENCIES = [
    *("accelerate", "aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "axial-positional-embedding", "certifi"),
    *("charset-normalizer", "idna"),
    *("colt5-attention", "einops", "einx", "ema-pytorch", "filelock", "frozendict", "frozenlist", "fsspec"),
    *("huggingface-hub", "hyper-connections", "jaxtyping", "joblib", "kornia-rs", "lightning-utilities", "linformer"),
    *("local-attention", "loguru", "multidict", "numpy", "opt-einsum", "opt-einsum-fx", "packaging", "pillow"),
    *("product-key-memory", "propcache", "psutil", "pyparsing", "pywavelets", "pyyaml", "requests", "safetensors"),
    *("scikit-learn", "scipy", "six", "sympy", "threadpoolctl", "timm", "torch-einops-utils", "tqdm", "trampoline"),
    *("urllib3", "wadler-lindig", "xxhash", "yarl"),
]

# Chosen by a rule that was written down before anybody looked at them (docs/benchmark-survey.md): in the order of
# downloads from PyPI (October 2026), the first eight packages whose summary speaks of torch, whose wheel is smaller
# than 30 MB and declares torch, that hold ten public modules, import on a CPU beside their declared dependencies
# without torchvision and torchaudio, are no nightly build, and had not been looked at for any other measurement.
UNSEEN: dict[str, tuple[str, ...]] = {
    "pytorch-lightning": (),
    "tensordict": (),
    "stable-baselines3": (),
    "torchrl": (),
    "curated-transformers": (),
    "schedulefree": (),
    "smplx": (),
    "lerobot": (),
}
# With what they import in their turn, as pip resolves it, but for what torch brings itself.
UNSEEN_DEPENDENCIES = [
    *("accelerate", "annotated-types", "anyio", "attrs", "av", "cachebox", "catalogue", "certifi"),
    *("charset-normalizer", "click", "cloudpickle", "curated-tokenizers", "cwevals", "datasets", "deepdiff"),
    *("diffusers", "dill", "distro", "draccus", "einops", "farama-notifications", "googleapis-common-protos"),
    *("gymnasium", "h11", "hf-xet", "hoptorch", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface-hub"),
    *("idna", "imageio", "importlib-metadata", "jsonlines", "lazy-importer", "lightning-utilities", "mergedeep"),
    *("multiprocess", "mypy-extensions", "numpy", "opencv-python-headless", "opentelemetry-api"),
    *("opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-common"),
    *("opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-http"),
    *("opentelemetry-proto", "opentelemetry-sdk", "opentelemetry-semantic-conventions", "orderly-set"),
    *("packaging", "pandas", "pillow", "platformdirs", "protobuf", "psutil", "pyarrow", "pydantic"),
    *("pydantic-core", "pyserial", "python-dateutil", "pyvers", "pyyaml", "regex", "requests", "safetensors"),
    *("sniffio", "tensordict", "termcolor", "tokenizers", "toml", "torchmetrics", "tqdm", "truststore"),
    *("typing-inspect", "typing-inspection", "tzdata", "urllib3", "wandb", "xxhash", "zipp"),
]

# What the same rule gives further down the list, after the first eight had been looked at and what they showed was
# mended; modules are classes of layers here, neither optimizers nor data code. No more of the 15,000 pass.
UNSEEN_LATER: dict[str, tuple[str, ...]] = {
    "auraloss": (),
    "rsl-rl-lib": (),
    "opacus": (),
    "pytorch-pretrained-bert": (),
    "pytorch-tabnet": (),
    "pytorchcv": (),
}
UNSEEN_LATER_DEPENDENCIES = [
    *("absl-py", "annotated-doc", "annotated-types", "boto3", "botocore", "certifi", "charset-normalizer"),
    *("cloudpickle", "deprecated", "einops", "gitdb", "gitpython", "grpcio", "humanize", "idna"),
    *("importlib-resources", "jaxtyping", "jmespath", "joblib", "markdown", "markdown-it-py", "mdurl"),
    *("ml-dtypes", "narwhals", "nibabel", "numpy", "onnx", "onnx-ir", "onnxscript", "opt-einsum", "packaging"),
    *("pillow", "protobuf", "pydantic", "pydantic-core", "pygments", "python-dateutil", "pyvers", "regex"),
    *("requests", "rich", "s3transfer", "scikit-learn", "scipy", "shellingham", "simpleitk", "six", "smmap"),
    *("tensorboard", "tensorboard-data-server", "tensordict", "threadpoolctl", "tqdm", "typer"),
    *("typing-inspection", "urllib3", "wadler-lindig", "werkzeug", "wrapt"),
]

# The first eight by the same rule, but for one condition: the summary need not speak of torch. Words such as "neural"
# or "speech", fixed before any package was asked for, stand in its place (docs/benchmark-survey.md).
UNSEEN_LAST: dict[str, tuple[str, ...]] = {
    "sentence-transformers": (),
    "lhotse": (),
    "mattersim": (),
    "flagembedding": (),
    "chronos-forecasting": (),
    "nvidia-modelopt": (),
    "llmcompressor": (),
    "neuralforecast": (),
}
# As pip resolves all eight together beside torch 2.13.0. Versions stand where one of them asks for another than the
# newest; torchvision and torchaudio, which mattersim declares, are left out as everywhere.
UNSEEN_LAST_DEPENDENCIES = [
    *("accelerate", "aiohappyeyeballs", "aiohttp", "aioitertools", "aiosignal", "alembic", "annotated-doc"),
    *("annotated-types", "anyio", "arro3-core", "ase", "atomate2", "attrs", "audioread", "auto-round==0.15.1"),
    *("azure-core", "azure-identity", "azure-storage-blob", "bcrypt", "bibtexparser==1.3.0", "blake3", "boto3"),
    *("botocore", "certifi", "cffi", "charset-normalizer", "click", "cloudpickle", "colorlog"),
    *("compressed-tensors==0.19.0", "contourpy", "coreforecast", "cryptography", "custodian", "cwevals==0.0.1b1"),
    *("cycler", "cytoolz", "datasets", "deltalake==1.5.1", "deprecated", "dill", "distro", "dnspython", "e3nn"),
    *("einops", "emmet-core", "fonttools", "frozenlist", "googleapis-common-protos", "h11", "h5py", "hf-xet"),
    *("httpcore", "httpx", "huggingface-hub==1.33.0", "idna", "inflect", "intervaltree", "invoke", "ir-datasets"),
    *("isodate", "jaraco-functools", "jmespath", "jobflow", "joblib", "jsonlines", "jsonschema"),
    *("jsonschema-specifications", "kiwisolver", "latexcodec", "lightning-utilities", "loguru", "lxml", "lz4"),
    *("maggma", "mako", "markdown-it-py", "matplotlib", "mdurl", "mongomock-ng", "monty", "more-itertools", "mp-api"),
    *("msal", "msal-extensions", "msgpack", "multidict", "multiprocess", "narwhals", "ninja", "numpy", "nvidia-ml-py"),
    *("omegaconf", "opentelemetry-api", "opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-common"),
    *("opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-proto"),
    *("opentelemetry-sdk", "opentelemetry-semantic-conventions", "opt-einsum", "opt-einsum-fx", "optuna", "orjson"),
    *("packaging", "palettable", "pandas", "paramiko", "peft", "phono3py", "phonopy", "phonors", "pillow"),
    *("platformdirs", "plotly", "propcache", "protobuf", "psutil", "pubchempy", "pulp", "py-cpuinfo", "pyarrow"),
    *("pybtex", "pycparser", "pydantic", "pydantic-core", "pydantic-settings", "pydash", "pygments", "pyjwt"),
    *("pymatgen", "pymatgen-core", "pymatgen-io-validation", "pymongo==4.16.0", "pynacl", "pyparsing"),
    *("python-dateutil==2.9.0.post0", "python-dotenv", "pytorch-lightning", "pytz", "pyyaml", "pyzmq", "ray"),
    *("referencing", "regex", "requests", "rich", "rpds-py", "ruamel-yaml", "s3transfer", "safetensors"),
    *("scikit-learn", "scipy", "seekpath", "sentencepiece", "sentinels", "shellingham", "six", "sniffio"),
    *("sortedcontainers", "soundfile", "spglib", "sqlalchemy", "symfc", "tabulate", "tensorboardx", "threadpoolctl"),
    *("tokenizers", "toolz", "torch-ema", "torch-geometric", "torch-runstats", "torchmetrics", "tornado", "tqdm"),
    *("transformers==5.17.0", "typeguard", "typer", "typing-inspection", "uncertainties", "urllib3", "utilsforecast"),
    *("wandb", "wrapt", "xxhash", "yarl"),
]


def environment(directory: Path, dependencies: list[str] = DEPENDENCIES) -> Path:
    """An interpreter with the torch of this machine and the dependencies of what is surveyed; wheels only.

    Without their own dependencies, so that nothing brings another torch. Torch is installed and not only pointed at:
    the sandbox shows an interpreter's own directories and nothing that they lead to.
    """
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        place = next(directory.glob("lib/python*/site-packages"))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", str(place)]
        subprocess.run([*command, f"torch=={version('torch').partition('+')[0]}"], check=True)
        subprocess.run([*command, "--no-deps", *dependencies], check=True)
    return python


@contextmanager
def unpacked(names: list[str], wheels: Path | None = None) -> Iterator[dict[str, Path]]:
    """The files of these packages, compiled ones left out, each in a directory of its own: requirement -> directory.

    `wheels`: where the wheels lie; without it they are fetched.
    """
    with tempfile.TemporaryDirectory(prefix="gradproof-packages-") as directory:
        fetched = wheels if wheels is not None else _fetched(names, Path(directory) / "wheels")
        places = {}
        for name in names:
            place = Path(directory) / name.replace("-", "_")
            for wheel in sorted(fetched.glob(f"{name.replace('-', '_')}-*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(place, [name for name in archive.namelist() if ".so" not in name])
            places[name] = place
        yield places


def _fetched(names: list[str], directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(directory), *names], check=True, stderr=subprocess.DEVNULL)
    return directory
