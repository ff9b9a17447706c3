"""What a build prints, to the terminal and to a log; and between its lines, how many kernels are compiled."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

NINJA_STATUS = "[%f/%t] "
FINISHED = re.compile(r"\[\d+/\d+\] Building CUDA object \S*?([^/\s]+\.cu)\.o")
BEGUN = re.compile(r"\*\*\* Building project|\[\d+/\d+\] ")
SILENCE = 20  # seconds of it, after which a line says that the build is alive


class Log:
    """Copies file descriptors 1 and 2, and so what CMake, Ninja and the compilers print, to <folder>/build.log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "build.log"
        self._start = time.monotonic()
        self._left: dict[str, int] | None = None  # kernels in each file that is not compiled yet; None before the build
        self._total = self._done = 0

    def __enter__(self) -> Log:
        self._file = open(self.path, "ab", buffering=0)  # after what an interrupted build wrote
        self._file.write(time.strftime("\n=== %Y-%m-%d %H:%M:%S\n").encode())
        self._flush()
        self._saved = [os.dup(1), os.dup(2)]
        self._pipe, writer = os.pipe()
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._flush()
        for saved, descriptor in zip(self._saved, (1, 2), strict=True):
            os.dup2(saved, descriptor)
        self._thread.join(timeout=5)  # a process that the build left behind may hold the pipe open
        kept = Path(tempfile.gettempdir()).resolve() not in self.path.resolve().parents
        said = ["the build failed"] * (kind is not None) + [f"log: {self.path}"] * kept
        if said:
            self.say("; ".join(said))

    def say(self, sentence: str) -> None:
        self._flush()
        print(f"flashcute: {sentence}", flush=True)

    @staticmethod
    def _flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._saved[0], view) :]
        except OSError:
            pass  # nobody reads any more, and the log goes on

    def _copy(self) -> None:
        rest = b""
        while True:
            if not select.select([self._pipe], [], [], SILENCE)[0]:
                if self._left:
                    self._write(self._count())
                continue
            data = os.read(self._pipe, 1 << 16)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self._write(line + b"\n" + self._after(line.decode(errors="replace")))
            if not data:
                if rest:
                    self._write(rest + b"\n")
                return

    def _after(self, line: str) -> bytes:
        """What to say after a line of the build."""
        said = b""
        if self._left is None and BEGUN.match(line):
            self._left = self._to_compile()
            self._total = sum(self._left.values())
            if self._left:
                said = f"flashcute: {self._total} kernels to compile, in {len(self._left)} files\n".encode()
        if (found := FINISHED.match(line)) and self._left is not None and found[1] in self._left:
            self._done += self._left.pop(found[1])
            said += self._count(f" ({found[1]})")
        return said

    def _count(self, which: str = "") -> bytes:
        return (
            f"flashcute: kernel {self._done} of {self._total}{which}, {time.monotonic() - self._start:.0f} s\n".encode()
        )

    def _to_compile(self) -> dict[str, int]:
        """Files of kernels to the number of kernels in each, of those that Ninja is about to compile."""
        contents = self._folder / "csrc" / "cuda" / "generated" / "contents.txt"
        if not contents.is_file():
            return {}
        kernels = {file: len(names) for file, *names in map(str.split, contents.read_text().splitlines())}
        cache = (self._folder / "CMakeCache.txt").read_text(errors="replace")
        ninja = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*ninja\S*)$", cache, re.MULTILINE)
        if not ninja:
            return kernels
        plan = subprocess.run([ninja[1], "-n", "-C", self._folder], capture_output=True, text=True, errors="replace")
        pending = {found[1] for found in map(FINISHED.match, plan.stdout.splitlines()) if found}
        return {file: count for file, count in kernels.items() if file in pending}
