import os
import shutil
import subprocess
import unittest

from kit import BIN, ClusterTest, processes

BUILD = os.path.dirname(BIN)
# What a machine has that runs C++ programs at all, and OpenSSL.
MAY_NEED = {"linux-vdso.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1",
            "libssl.so.3", "libcrypto.so.3"}


def option(name):
    """What this build was configured with."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as cache:
        for line in cache:
            if line.startswith(name + ":"):
                return line.rstrip("\n").split("=", 1)[1]
    return ""


def needs(program):
    """Names of the shared libraries that it is loaded with; None: it needs none."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if "statically linked" in done.stdout or "not a dynamic executable" in done.stdout + done.stderr:
        return None
    return {os.path.basename(line.split()[0]) for line in done.stdout.splitlines()}


class Installed(ClusterTest):
    autostart = False

    def setUp(self):
        super().setUp()
        self.prefix = os.path.join(self.cluster.folder, "prefix")
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", self.prefix], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.cluster.program = self.path("bin/rayctl")

    def path(self, name):
        return os.path.join(self.prefix, name)

    def test_the_installed_tree_runs_a_cluster_also_by_a_link(self):
        for name in ("bin/rayctl", "bin/rayctl-shim", "share/doc/rayctl/README.md", "share/doc/rayctl/docs/status.md",
                     "share/rayctl/proto/rayctl/v1/job.proto", "share/bash-completion/completions/rayctl",
                     "share/zsh/site-functions/_rayctl", "share/fish/vendor_completions.d/rayctl.fish"):
            self.assertTrue(os.path.isfile(self.path(name)), name)
        elsewhere = os.path.join(self.cluster.folder, "elsewhere")
        os.mkdir(elsewhere)
        os.symlink(self.path("bin/rayctl"), os.path.join(elsewhere, "rayctl"))
        self.cluster.program = os.path.join(elsewhere, "rayctl")
        self.cluster.start()
        self.assertEqual(self.cluster.ok("submit", "--", "echo", "hi").out, "hi\n")
        agents = [words for _, words in processes() if self.cluster.state in words and words[1:2] == ["agent"]]
        self.assertEqual(len(agents), 1)
        self.assertEqual(agents[0][agents[0].index("--shim") + 1], self.path("bin/rayctl-shim"))
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(self.cluster.left_behind(), [])

    def test_a_shim_that_is_not_beside_it_is_missed_at_the_start(self):
        os.unlink(self.path("bin/rayctl-shim"))
        done = self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                self.cluster.state, address=False)
        self.assertEqual(done.code, 1, done)
        self.assertIn(self.path("bin/rayctl-shim"), done.err)
        self.assertEqual(self.cluster.left_behind(), [])

    def test_the_installed_completion_completes(self):
        script = ('source "$1"; COMP_WORDS=(rayctl sta); COMP_CWORD=1; _rayctl; printf "%s\\n" "${COMPREPLY[@]}"')
        env = {**self.cluster.env, "PATH": f"{self.path('bin')}:{self.cluster.env['PATH']}"}
        done = subprocess.run(["bash", "-c", script, "bash", self.path("share/bash-completion/completions/rayctl")],
                              env=env, capture_output=True, text=True, check=False)
        self.assertEqual(sorted(done.stdout.split()), ["start", "status"], done.stderr)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd here")
    def test_systemd_reads_the_installed_units(self):
        for scope in ("system", "user"):
            units = [self.path(f"lib/systemd/{scope}/rayctl-{daemon}.service") for daemon in ("head", "agent")]
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--{scope}", *units], text=True,
                                  env={**self.cluster.env, "XDG_RUNTIME_DIR": self.cluster.folder}, capture_output=True,
                                  check=False)
            # What an older systemd does not know it leaves out.
            said = [line for line in done.stderr.splitlines()
                    if "rayctl" in line and "'DelegateSubgroup' in section" not in line]
            self.assertEqual(said, [], scope)
            self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("lib/systemd/system/rayctl-agent.service"), encoding="utf-8") as unit:
            lines = unit.read().splitlines()
        for line in ("Delegate=yes", "DelegateSubgroup=agent", "KillMode=process", "Type=notify", "OOMPolicy=continue",
                     f"ExecStart={self.path('bin/rayctl')} start --become=agent $RAYCTL_AGENT_OPTIONS"):
            self.assertIn(line, lines)

    @unittest.skipUnless(option("RAYCTL_STATIC_GRPC") == "ON", "this build shares gRPC and others; releases do not")
    def test_it_needs_no_libraries_but_openssl_and_the_languages_own(self):
        self.assertEqual(needs(self.path("bin/rayctl")) - MAY_NEED, set())

    @unittest.skipIf(option("RAYCTL_SANITIZE"), "sanitizers need shared libraries")
    def test_the_shim_needs_no_library_at_all(self):
        self.assertIsNone(needs(self.path("bin/rayctl-shim")))



if __name__ == "__main__":
    unittest.main()
