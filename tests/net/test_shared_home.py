"""One home on many hosts, as users of clusters have it: the same ~/.local/state and ~/.rayctl, another /tmp on each."""

import os
import stat

from lab import HEAD_PORT, LabTest


class SharedHome(LabTest):
    def setUp(self):
        super().setUp()
        self.home = os.path.join(self.lab.folder, "home")
        os.mkdir(self.home)

    def host(self, name):
        """A host that has the shared home, and keeps its state where it does by default."""
        host = self.lab.host(name)
        host.env["HOME"] = self.home
        return host

    def state(self, leaf):
        return os.path.join(self.home, ".local/state/rayctl", leaf)

    def start_head(self, host):
        host.ok("start", "--head", "--dashboard-port", "0", "--num-cpus", "2")
        host.state = self.state(f"{host.name}-{HEAD_PORT}")
        return f"10.77.0.{'abc'.index(host.name) + 1}:{HEAD_PORT}"

    def current(self):
        with open(os.path.join(self.home, ".rayctl/current"), encoding="utf-8") as file:
            return file.read()

    def test_two_heads_of_one_home_are_two_clusters(self):
        a, b, c = (self.host(name) for name in "abc")
        at_a, at_b = self.start_head(a), self.start_head(b)
        self.assertEqual(self.current(), at_b + "\n")
        # Who has a daemon means that one, whatever was started last; who has none means the last.
        self.assertEqual([host.json("status")["address"] for host in (a, b, c)], [at_a, at_b, at_b])
        # Nobody types a token, from wherever they ask.
        self.assertEqual(c.json("status", "--address", at_a)["address"], at_a)
        self.assertEqual(b.ok("submit", "--address", at_a, "--", "hostname").out, "a\n")
        self.assertEqual(c.ok("submit", "--", "hostname").out, "b\n")
        self.assertEqual([len(host.json("list", "jobs")["jobs"]) for host in (a, b)], [1, 1])
        for folder, _, names in os.walk(os.path.join(self.home, ".rayctl")):
            self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700, folder)
            self.assertEqual(set(names) - {"ca.pem", "token", "current"}, set())
        # Each stop sees its own machine alone.
        self.assertEqual(len(a.ok("stop").out.splitlines()), 2)
        self.assertEqual(b.json("status")["address"], at_b)
        self.assertEqual(c.ok("stop").out, "nothing to stop\n")
        self.assertEqual(b.json("status")["address"], at_b)

    def test_agents_of_one_home_are_nodes_of_their_own(self):
        a, b, c = (self.host(name) for name in "abc")
        at_a = self.start_head(a)
        for host in (b, c):
            host.ok("start", "--address", at_a, "--num-cpus", "2")
            host.state = self.state(f"{host.name}-agent")
        nodes = self.nodes(b)
        self.assertEqual(sorted(nodes), ["a", "b", "c"])
        self.assertEqual(len({node["id"] for node in nodes.values()}), 3)
        job = self.spread(c, "hostname", 3)
        self.assertEqual(b.run("wait", job).code, 0)
        self.assertEqual(sorted(c.ok("logs", job).out.split()), sorted("[rank 0] [rank 1] [rank 2] a b c".split()))
        # A node that leaves takes nothing from the others, and comes back as itself.
        b.ok("stop")
        self.until_node(a, "b", "dead")
        b.ok("start", "--address", at_a, "--num-cpus", "2")
        self.until_node(a, "b", "alive")
        self.assertEqual(self.nodes(a)["b"]["id"], nodes["b"]["id"])

    def test_hosts_of_one_name_are_told_apart_by_a_sentence(self):
        a, b = self.host("a"), self.host("b")
        at_a = self.start_head(a)
        # A cloned machine: the folder is the same, and the file system's lock says that it is in use.
        done = b.run("start", "--head", "--dashboard-port", "0", "--node-name", "a")
        self.assertEqual(done.code, 1, done)
        self.assertIn(self.state(f"a-{HEAD_PORT}"), done.err)
        self.assertEqual(b.processes(), [])
        self.assertEqual(a.json("status")["address"], at_a)
        # What runs elsewhere is not taken for what runs here.
        self.assertEqual(b.ok("stop", "--state-dir", a.state).out, "nothing to stop\n")
        self.assertEqual(a.ok("submit", "--", "echo", "hi").out, "hi\n")
