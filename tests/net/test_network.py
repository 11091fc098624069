"""Clusters over a network: which address a node is known by, what a person reads when something is in the way, and what
loss, cuts and detours do to running jobs."""

import json
import os
import subprocess
import sys

from lab import HEAD_PORT, LabTest, ip
from run import HERE

GANG_BYTES = 1 << 20  # As gang.py sends.


class Network(LabTest):
    def gang(self, head, ranks):
        """Runs gang.py with one rank a node; what each rank saw, by rank."""
        out = os.path.join(self.lab.folder, "gang.json")
        job = self.spread(head, f"exec {sys.executable} {HERE}/gang.py {out}", ranks)
        done = head.run("wait", job)
        self.assertEqual(done.code, 0, f"{done!r}\n{head.run('logs', job)!r}\n{self.lab.logs()}")
        with open(out, encoding="utf-8") as file:
            return {line["rank"]: line for line in map(json.loads, file)}


class Addresses(Network):
    def test_a_gang_of_three_hosts_talks_over_their_network(self):
        hosts = self.lab.cluster(3)
        before = {host.name: host.bytes_sent() for host in hosts}
        saw = self.gang(hosts[0], 3)
        self.assertEqual({line["host"] for line in saw.values()}, {"a", "b", "c"})
        master = saw[0]["host"]
        self.assertEqual({line["master"] for line in saw.values()}, {f"10.77.0.{'abc'.index(master) + 1}"})
        self.assertEqual({tuple(line["interfaces"]) for line in saw.values()}, {("eth0",) * 3})
        self.assertEqual(saw[0]["received"], 2 * GANG_BYTES)
        for host in hosts:
            if host.name != master:
                self.assertGreater(host.bytes_sent() - before[host.name], GANG_BYTES)

    def test_with_two_interfaces_each_node_is_known_by_the_one_that_the_others_reach(self):
        storage = self.lab.bridge("storage")
        a, b = self.lab.bare_host("a"), self.lab.bare_host("b")
        a.plug("stor0", "10.88.0.1/24", bridge=storage).plug("train0", "10.77.0.1/24")
        b.plug("stor0", "192.168.9.2/24", bridge=storage).plug("train0", "10.77.0.2/24")
        started = a.start_head("--num-cpus", 2, "--node-ip-address", "10.77.0.1")
        self.assertEqual(started["address"], f"10.77.0.1:{HEAD_PORT}")
        b.join("--num-cpus", 2)
        self.assertEqual({name: node["address"] for name, node in self.nodes(a).items()},
                         {"a": "10.77.0.1", "b": "10.77.0.2"})
        before = a.bytes_sent("train0") + b.bytes_sent("train0")
        saw = self.gang(a, 2)
        self.assertEqual({tuple(line["interfaces"]) for line in saw.values()}, {("train0",) * 3})
        self.assertGreater(a.bytes_sent("train0") + b.bytes_sent("train0") - before, GANG_BYTES)

    def test_without_ipv4(self):
        a, b = self.lab.bare_host("a"), self.lab.bare_host("b")
        a.plug("eth0", "fd77::1/64")
        b.plug("eth0", "fd77::2/64")
        started = a.start_head("--num-cpus", 2)
        self.assertEqual(started["address"], f"[fd77::1]:{HEAD_PORT}")
        b.join("--num-cpus", 2)
        self.assertEqual({node["address"] for node in self.nodes(b).values()}, {"fd77::1", "fd77::2"})
        before = a.bytes_sent() + b.bytes_sent()
        saw = self.gang(b, 2)
        self.assertEqual(saw[0]["received"], GANG_BYTES)
        self.assertEqual({tuple(line["interfaces"]) for line in saw.values()}, {("eth0",) * 3})
        self.assertGreater(a.bytes_sent() + b.bytes_sent() - before, GANG_BYTES)

    def test_a_host_name_that_means_loopback_misleads_nobody(self):
        a, b = self.lab.bare_host("a"), self.lab.bare_host("b")
        for host, number in ((a, 1), (b, 2)):
            host.write("hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n10.77.0.1 head.example\n")
            host.plug("eth0", f"10.77.0.{number}/24")
        started = a.start_head("--num-cpus", 2)
        self.assertEqual(started["address"], f"10.77.0.1:{HEAD_PORT}")
        b.join("--num-cpus", 2, address=f"head.example:{HEAD_PORT}")  # By name, where names work.
        saw = self.gang(a, 2)
        self.assertIn(saw[0]["master"], ("10.77.0.1", "10.77.0.2"))

    def test_one_open_port_on_the_head_is_enough_for_a_node_behind_nat(self):
        inside = self.lab.bridge("inside")
        a = self.lab.host("a")
        router = self.lab.bare_host("router")
        router.plug("out0", "10.77.0.9/24").plug("in0", "192.168.7.1/24", bridge=inside)
        router.net("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        router.rules("""
            table ip nat {
              chain out {
                type nat hook postrouting priority 100
                oifname out0 masquerade
              }
            }
            table ip filter {
              chain forward {
                type filter hook forward priority 0
                iifname out0 ct state new drop
              }
            }""")
        hidden = self.lab.bare_host("hidden")
        hidden.plug("eth0", "192.168.7.2/24", bridge=inside)
        hidden.net("ip", "route", "add", "default", "via", "192.168.7.1")
        a.start_head("--num-cpus", 0)
        # Nothing but the one port is open on the head's machine.
        a.rules(f"""
            table inet door {{
              chain in {{
                type filter hook input priority 0
                iifname lo accept
                ct state established,related accept
                tcp dport {HEAD_PORT} accept
                icmp type echo-request accept
                drop
              }}
            }}""")
        hidden.join("--num-cpus", 2)
        done = a.run("submit", "--", "hostname")
        self.assertEqual((done.code, done.out), (0, "hidden\n"), done)
        self.assertEqual(hidden.ok("submit", "--", "hostname").out, "hidden\n")


class Refusals(Network):
    """What is in the way is said in a sentence that names the address and what to do."""

    def setUp(self):
        super().setUp()
        self.a, self.b = self.lab.host("a"), self.lab.host("b")

    def refused(self, pattern, *flags, **where):
        done = self.b.try_join(*flags, **where)
        self.assertEqual(done.code, 1, done)
        self.assertRegex(done.err, pattern)
        self.assertEqual(done.err.count("\n"), 1, done)
        self.assertEqual(self.b.processes(), [], "a refused agent must not stay")

    def test_a_blocked_port(self):
        self.a.start_head("--num-cpus", 1)
        self.a.filter(f"iifname eth0 tcp dport {HEAD_PORT} drop")
        self.refused(rf"10\.77\.0\.1:{HEAD_PORT}.*(timed out|no answer).*firewall")
        self.a.filter(f"iifname eth0 tcp dport {HEAD_PORT} reject with tcp reset")
        self.refused(rf"10\.77\.0\.1:{HEAD_PORT}.*[Cc]onnection refused.*rayctl start --head")
        self.a.heal()
        self.b.join("--num-cpus", 1)

    def test_a_wrong_address(self):
        self.a.start_head("--num-cpus", 1)
        self.refused(r"10\.77\.0\.1:1.*[Cc]onnection refused", address="10.77.0.1:1")
        self.refused(r"10\.77\.0\.77.*(No route|timed out|no answer)", address="10.77.0.77:6379")
        self.refused(r"nowhere\.invalid.*not known", address="nowhere.invalid:6379")
        self.refused(r"localhost:6379.*[Cc]onnection refused.*this machine itself", address="localhost:6379")

    def test_something_else_listens_there(self):
        self.a.start_head("--num-cpus", 1)
        web = subprocess.Popen(self.a.words(sys.executable, "-u", "-m", "http.server", "8000"), stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
        self.assertIn("Serving", web.stdout.readline())
        self.refused(r"10\.77\.0\.1:8000.*does not speak TLS", address="10.77.0.1:8000")
        web.stdout.close()
        for pid, words in self.a.processes():
            if "http.server" in words:
                os.kill(pid, 15)
        web.wait()

    def test_the_token_of_another_cluster(self):
        self.b.start_head("--num-cpus", 1)
        other = self.lab.join_token
        self.b.ok("stop", "--state-dir", self.b.state)
        self.b.state += "-second"
        self.a.start_head("--num-cpus", 1)
        self.refused(r"belongs to another cluster than the token", token=other)


class Faults(Network):
    def test_one_packet_in_five_lost(self):
        a, b, c = self.lab.cluster(3)
        b.lose(20)
        job = self.spread(a, f"{self.say('rank', '$RANK')}; {self.hear('go')}", 3)
        for _ in range(3):
            self.assertEqual(self.lab.steps.next()[0], "rank")
        for _ in range(3):
            self.lab.steps.go("go")
        self.assertEqual(a.run("wait", job).code, 0)
        self.assertEqual(a.json("describe", job)["attempt"], 0)
        for name in ("b", "c"):
            self.assertNotEqual(self.nodes(a)[name]["state"], "dead")

    def test_frames_late_twice_and_out_of_order(self):
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            self.skipTest("only root may open /dev/net/tun here")
        a = self.lab.host("a")
        b = self.lab.host("b", faults={"seed": 7, "delay_ms": 20, "jitter_ms": 20, "duplicate": 0.1, "reorder": 0.2})
        a.start_head("--num-cpus", 1)
        b.join("--num-cpus", 1)
        self.assertEqual(self.gang(a, 2)[0]["received"], GANG_BYTES)
        done = a.run("submit", "--num-workers", "2", "--", "seq", "2000")
        self.assertEqual(done.code, 0)
        self.assertEqual(sorted(done.out.splitlines()),
                         sorted(f"[rank {rank}] {n}" for rank in range(2) for n in range(1, 2001)))

    def test_a_short_cut_makes_a_node_suspect_and_nothing_else(self):
        a, b, _ = self.lab.cluster(3)
        job = self.spread(a, f"{self.say('rank', '$RANK')}; {self.hear('go')}", 3)
        for _ in range(3):
            self.lab.steps.next()
        b.cut()
        self.until_node(a, "b", "suspect")
        self.assertEqual(a.json("describe", job)["state"], "RUNNING")
        b.mend()
        self.until_node(a, "b", "alive")
        for _ in range(3):
            self.lab.steps.go("go")
        self.assertEqual(a.run("wait", job).code, 0)
        now = a.json("describe", job)
        self.assertEqual((now["attempt"], now["failures"], now["state"]), (0, 0, "SUCCEEDED"))

    def test_a_long_cut_moves_the_gang_and_the_stale_rank_dies_at_the_return(self):
        """The one test here that waits for real seconds: the 30 of the rule for a silent node."""
        a, b, _ = self.lab.cluster(3, cpus=1)
        job = self.spread(a, f"{self.say('rank', '$RANK', '$RAYCTL_ATTEMPT', '$(hostname)')}; {self.hear('go')}", 2,
                          run_config="{failure_config: {max_failures: 1}}")
        where = {}
        for _ in range(2):
            _, rank, attempt, host = self.lab.steps.next()
            where[host] = rank
            self.assertEqual(attempt, "0")
        lost = next(host for host in self.lab.hosts if host.name in where and host is not a)
        lost.cut()
        stale = [pid for pid, words in lost.processes() if words[0].endswith("sh")]
        self.assertTrue(stale)
        self.until_node(a, lost.name, "dead")
        said = [self.lab.steps.next() for _ in range(2)]
        self.assertEqual({words[2] for words in said}, {"1"})
        self.assertNotIn(lost.name, {words[3] for words in said})
        for pid in stale:
            self.assertTrue(os.path.exists(f"/proc/{pid}"))  # It runs on where nobody can tell it to stop.
        lost.mend()
        self.until_node(a, lost.name, "alive")
        self.lab.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in stale), "the stale rank is gone")
        for _ in range(2):
            self.lab.steps.go("go")
        self.assertEqual(a.run("wait", job).code, 0)
        self.assertEqual(a.json("describe", job)["failures"], 1)

    def test_an_agent_opens_a_dead_link_anew_by_itself(self):
        """The connection is lost on the way, as when a router forgets it: neither end is told."""
        a, b = self.lab.cluster(2)
        ports = b.ports_to(HEAD_PORT)
        self.assertTrue(ports)
        old = "{" + ",".join(map(str, ports)) + "}"
        a.filter(f"iifname eth0 tcp sport {old} drop", f"oifname eth0 tcp dport {old} drop")
        self.until_node(a, "b", "suspect")
        self.until_node(a, "b", "alive")
        self.assertEqual(b.ok("submit", "--", "hostname").code, 0)


if __name__ == "__main__":
    sys.exit("run it by: python3 run.py test_network")
