"""What holds a running node together in /tmp is removed under it: clean-ups do that to what looks old."""

import ctypes
import fcntl
import os
import shutil
import signal
import unittest

from kit import ClusterTest, start_ticks, wait_gone

RENAME_EXCHANGE = 2
AT_FDCWD = -100


def exchange(one, other):
    """Both paths at once, so that nobody sees either missing."""
    if ctypes.CDLL(None, use_errno=True).renameat2(AT_FDCWD, one.encode(), AT_FDCWD, other.encode(), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), one)


class Removed(ClusterTest):
    def run_dir(self):
        root = f"/tmp/rayctl-{os.getuid()}"
        name, = (name for name in os.listdir(root) if self.cluster.folder in self.runtime_owner(name))
        return os.path.join(root, name)

    def until_found(self, run_dir):
        """Both files are there again."""
        def check():
            self.cluster.ok("status")
            return all(os.path.exists(os.path.join(run_dir, name)) for name in ("head.json", "agent.json"))

        self.cluster.until(check, "the daemons say again where they are")

    def test_who_cleans_up_folders_that_nobody_has_locked_leaves_it(self):
        root = os.open(f"/tmp/rayctl-{os.getuid()}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self.assertRaises(BlockingIOError):
                fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(root)

    def test_the_daemons_make_it_again(self):
        run_dir = self.run_dir()
        for remove in (lambda: shutil.rmtree(run_dir), lambda: os.rename(run_dir, run_dir + ".old"),
                       lambda: os.unlink(os.path.join(run_dir, "agent.json"))):
            try:
                remove()
            except OSError as refused:
                self.assertIn("not empty", str(refused))  # They were quicker than the last step of the removal.
            self.until_found(run_dir)
        shutil.rmtree(run_dir + ".old")
        self.assertEqual(os.stat(run_dir).st_mode & 0o777, 0o700)
        self.assertEqual(self.cluster.ok("submit", "--", "echo", "hi").out, "hi\n")
        before = self.cluster.daemons()
        again = self.cluster.run("start", "--head", "--state-dir", self.cluster.state, address=False)
        self.assertIn("already running", again.err)
        self.assertEqual(self.cluster.daemons(), before)
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(len(stopped.out.splitlines()), 2, stopped)
        self.cluster.until(lambda: not os.path.exists(run_dir), "the runtime folder is removed")

    def test_stop_finds_daemons_that_cannot_make_it_again(self):
        job = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, _), = self.ranks_run(job, 1).values()
        run_dir = self.run_dir()
        blocked = run_dir + ".file"
        with open(blocked, "w", encoding="utf-8"):
            pass
        exchange(run_dir, blocked)
        self.addCleanup(os.unlink, run_dir)
        shutil.rmtree(blocked)
        daemons = self.cluster.daemons()
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        for daemon in daemons.values():
            self.assertIn(f"(pid {daemon})", stopped.out)
        self.assertIsNone(start_ticks(pid))
        self.assertEqual(self.cluster.left_behind(), [])

    def test_stop_finds_ranks_whose_agent_and_socket_are_gone(self):
        job = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, _), = self.ranks_run(job, 1).values()
        run_dir = self.run_dir()
        for daemon in ("agent", "head"):
            self.cluster.kill(daemon, signal.SIGKILL)
        shutil.rmtree(run_dir)
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertIn("1 job that had no agent", stopped.out)
        self.assertTrue(wait_gone(pid))
        self.assertEqual(self.cluster.left_behind(), [])


if __name__ == "__main__":
    unittest.main()
