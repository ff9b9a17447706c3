"""Where a build keeps its objects: build/<Python's ABI>[-cpu][-<digest of the options>], which another build with the
same Python and the same options finds again, and no other touches."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flashcute_backend.options import Options


def _key(options: Options) -> str:
    key = sysconfig.get_config_var("SOABI") or sysconfig.get_platform()
    if not options.cuda:
        key += "-cpu"
    if given := options.of_objects():
        key += "-" + hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest()[:8]
    return str(key)


def _literal(build_dir: str) -> Path:
    """scikit-build-core fills names in braces in; what precedes them is a folder in any case."""
    return Path(build_dir.partition("{")[0] or "build").absolute()


def trees(options: Options, folder: Path | None) -> Path:
    """The folder of the kept headers and toolkits, which all builds below build/ share.

    `folder` is this build's, None where it is not known yet.
    """
    if options.build_dir:
        return _literal(options.build_dir) / "third_party"
    base = Path("build").absolute()
    return (base if folder is None or folder.parent == base else folder) / "third_party"


@contextlib.contextmanager
def build_folder(options: Options) -> Iterator[Path]:
    """The folder of this build, for this process alone. A temporary one where the source tree cannot be written."""
    folder = _literal(options.build_dir) if options.build_dir else Path("build", _key(options)).absolute()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(folder / "lock", "w", encoding="utf-8"))
            trees(options, folder).mkdir(exist_ok=True)
        except OSError as error:
            if options.build_dir:
                raise
            print(f"flashcute: objects are not kept for the next build ({error})", flush=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flashcute-")))
            trees(options, folder).mkdir()
        else:
            _take(lock.fileno(), folder)
        yield folder


def _take(lock: int, folder: Path) -> None:
    """Waits until no other process builds in this folder. File systems without locks do without."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"flashcute: waiting for another build in {folder}", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass
