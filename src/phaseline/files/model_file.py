"""The one door to a model on disk and to its tokenizer, whatever the format."""

from pathlib import Path

from phaseline.files.base import ModelFile
from phaseline.files.gguf import GGUFFile, split_parts
from phaseline.files.hf.folder import HFFolder
from phaseline.files.split_gguf import SplitGGUF
from phaseline.files.tokenizer import Tokenizer


def open_model_file(path: Path) -> ModelFile:
    """A Hugging Face folder, a GGUF file, or all parts of a split one, of which any part may be named.

    FileFormatError for what is malformed, UnsupportedError for what this version does not read.
    """
    if path.is_dir():
        return HFFolder(path)
    file = GGUFFile(path)
    if split_parts(file) == 1:
        return file
    file.close()
    return SplitGGUF(path)


def open_tokenizer(file: ModelFile) -> Tokenizer:
    """The tokenizer that a model brings along: in a folder files of its own, else metadata. Raises the same errors."""
    if file.path.is_dir():
        return Tokenizer.from_folder(file.path, vocab_size=file.tensors["token_embd.weight"].shape[0])
    return Tokenizer.from_metadata(file.metadata)
