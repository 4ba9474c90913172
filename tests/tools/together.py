#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whoever ends one of the tools while it sets up or builds has nothing of it
left: no process, no file; and it runs again. In a checkout whose path nobody
would choose. Argument: the source.
"""
import itertools
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
ENDS = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}
# All that the tools call: it does nothing, but where $HANGS names it.
FAKE = r"""#!/bin/bash
me=${0##*/}
case "$me $1" in
"dpkg-query "*) [ -n "$MISSING" ] || echo 'install ok installed' ;;
"git ls-files") echo tools/build ;;
"git describe") echo v1 ;;
"id "*) echo 0 ;;
esac
dir=${2-}
[ "$dir" != --wipe ] || dir=$3
if [ "$me $1" = "meson setup" ]; then
	# So does the real one of a setup that was ended.
	[ ! -e "$dir/meson-private" ] || exit 0
	mkdir -p "$dir/meson-private"
fi
if [ "$me" = "$HANGS" ]; then
	[ "$me" != python ] || mkdir -p "$TMPDIR/pip-unpack"
	sleep 1000 | sleep 1000 &
	echo >"$SAYS"
	wait
fi
[ "$me $1" != "meson setup" ] || touch "$dir/build.ninja"
"""
PROGRAMS = ("meson ninja git apt-get clang cppcheck codespell dpkg-query id "
            "dpkg-architecture dpkg python pyflakes3 shellcheck").split()
# Who runs what first.
TOOLS = {
    ("tools/demo",): ("meson",),
    ("tools/test",): ("meson", "ninja", "python"),
    ("tools/build", "build/some"): ("meson", "ninja"),
    ("tools/soak",): ("meson", "ninja"),
    ("tools/fuzz",): ("meson", "ninja"),
    ("tools/package",): ("meson", "ninja"),
    ("tools/lint", "spelling"): ("meson", "codespell"),
    ("tools/abi-check",): ("meson",),
    ("tools/coverage",): ("meson", "ninja"),
    ("tools/kernels",): ("clang",),
    ("tools/python-venv", "build/python"): ("python",),
    (".ci/run",): ("meson",),
}


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


class Place:
    """A checkout, with programs that do as they are told."""

    def __init__(self, top):
        self.top = top / "-My \"Projects\" & $HOME 100% ü's" / "shardkeep"
        self.beside = self.top.parents[1]
        shutil.copytree(source / "tools", self.top / "tools")
        shutil.copytree(source / ".ci", self.top / ".ci")
        (self.top / "cache/cuda").mkdir(parents=True)
        self.temporary, self.bin = top / "tmp of it", top / "bin"
        self.temporary.mkdir()
        self.bin.mkdir()
        for name in PROGRAMS:
            program(self.bin / name, FAKE)
        self.says = top / "says"
        os.mkfifo(self.says)
        self.env = dict(os.environ, TMPDIR=str(self.temporary), MISSING="",
                        PATH=f"{self.bin}:{os.environ['PATH']}",
                        PYTHONDONTWRITEBYTECODE="1", SAYS=str(self.says),
                        HANGS="", CLANG="clang", PYTHON="python", TORCH="")
        self.env.pop("SK_TOGETHER", None)

    def start(self, command, **more):
        """From beside the checkout."""
        name = f"./{self.top.parent.name}/shardkeep/{command[0]}"
        return subprocess.Popen([name, *command[1:]], cwd=self.beside,
                                stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                start_new_session=True,
                                env=dict(self.env, **more))

    def hung(self, tool):
        """Once it has come there; it need not."""
        with open(os.open(self.says, os.O_RDONLY | os.O_NONBLOCK)) as says:
            while not select.select([says], [], [], 0.05)[0]:
                assert tool.poll() is None, (tool, tool.stdout.read())
            says.readline()

    def left(self):
        """Processes and files of whatever it was."""
        mark = b"TMPDIR=" + bytes(self.temporary)
        for each in pathlib.Path("/proc").iterdir():
            try:
                if (each.name.isdigit() and mark in
                        (each / "environ").read_bytes().split(b"\0")):
                    yield int(each.name), (each / "cmdline").read_bytes()
            except OSError:
                pass
        yield from self.temporary.iterdir()


def ends(place, command, at, number):
    for there in place.top, place.beside:
        shutil.rmtree(there / "build", ignore_errors=True)
    tool = place.start(command, HANGS=at)
    place.hung(tool)
    if number == signal.SIGINT:     # of a terminal, to all of them
        os.killpg(tool.pid, number)
    else:
        tool.send_signal(number)
    said = tool.communicate()[0]
    left = list(place.left())
    for pid in (x[0] for x in left if isinstance(x, tuple)):
        os.kill(pid, signal.SIGKILL)
    assert not left, (command, at, number, left, said)
    assert tool.returncode == ENDS[number], (command, at, number, tool, said)


def goes_on(place):
    """A setup that was ended is begun anew."""
    tool = place.start(("tools/build", "build/some"))
    said = tool.communicate()[0]
    assert tool.returncode == 0, said
    assert (place.beside / "build/some/build.ninja").exists(), said


def installs(place):
    """What is half installed would be somebody's to mend."""
    done = place.temporary.parent / "installed"
    program(place.bin / "apt-get", f"""#!/bin/sh
case "$*" in
*--download-only*) [ -z "$FIRST" ] || {{ echo >"$SAYS"; sleep 1000; }} ;;
*install*) echo >"$SAYS"; read -r _ <"$SAYS"; sleep 0.2; echo >'{done}' ;;
esac
""")
    for number, status in ENDS.items():
        tool = place.start(("tools/setup", "build"), MISSING="1", FIRST="1")
        place.hung(tool)
        tool.send_signal(number)
        assert tool.wait() == status and not list(place.left())
        tool = place.start(("tools/demo",), MISSING="1")
        place.hung(tool)
        tool.send_signal(number)
        place.says.write_text("\n")
        said = tool.communicate()[0]
        assert tool.returncode == status, (number, said)
        assert done.exists() and not list(place.left()), (number, said)
        done.unlink()


def passes_on(place):
    """What is said to it, and how it ends."""
    command = [place.top / "tools/together", "sh", "-c", "cat; exit 7"]
    done = subprocess.run(command, input=b"a line", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (7, b"a line"), done
    for closed in 0, 1, 2:
        done = subprocess.run([*command[:-1], "exit 7"], check=False,
                              preexec_fn=lambda c=closed: os.close(c))
        assert done.returncode == 7, (closed, done)
    # Nobody ends by ^C who was to ignore it; whoever is run may.
    ignored = subprocess.run(
        [command[0], "sh", "-c", "kill -INT $$; exit 7"],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert ignored.returncode == 130, ignored


def main():
    for number in ENDS:     # whoever began this may have had them ignored
        signal.signal(number, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="together of ") as top:
        place = Place(pathlib.Path(top))
        passes_on(place)
        for number in ENDS:
            ends(place, ("tools/demo",), "ninja", number)
        numbers = itertools.cycle(ENDS)
        for command, stages in TOOLS.items():
            for at in stages:
                ends(place, command, at, next(numbers))
        ends(place, ("tools/build", "build/some"), "meson", signal.SIGTERM)
        goes_on(place)
        installs(place)


if __name__ == "__main__":
    main()
