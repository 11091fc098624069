"""Hosts out of Linux namespaces, with a switch between them and wires that can be cut.

Only inside run.py: every host is a process tree of its own (killing its first process is pulling the plug), with its own
addresses, host name, /tmp, boot id, home and state folder. What is made here vanishes with the test.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import unittest
import uuid

from kit import (BIN, RAYCTL, Result, Steps, Watched, job_cgroups, processes, remove_cgroup, sanitizer_options,
                 wait_gone)
from run import HERE, INSIDE

DEADLINE_SECONDS = 90.0
SWITCH = "switch"
HEAD_PORT = 6379


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Host:
    """One machine: namespaces, cables, and what rayctl keeps on it."""

    def __init__(self, lab, name):
        self.lab, self.name = lab, name
        self.folder = os.path.join(lab.folder, name)
        self.state = os.path.join(self.folder, "state")
        self.home = os.path.join(self.folder, "home")
        os.makedirs(self.home)
        self.hosts_file = self.write("hosts", "127.0.0.1 localhost\n::1 localhost\n")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("RAYCTL_", "XDG_"))}
        self.env["HOME"] = self.home
        self.env.update(sanitizer_options(lab.findings_dir))
        self.cables = {}  # Interface -> (bridge, addresses, relay faults or None).
        self.relays = []
        self.address = None  # Of the head that its CLI speaks to.
        self.boots = 0
        self.outer = self.init = None

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    # ---- Power.
    def boot(self):
        self.boots += 1
        tmp = os.path.join(self.folder, "tmp")
        shutil.rmtree(tmp, ignore_errors=True)
        os.mkdir(tmp, 0o1777)
        os.chmod(tmp, 0o1777)
        view = {"name": self.name, "hosts": self.hosts_file, "tmp": tmp,
                "boot_id": self.write("boot_id", f"{uuid.uuid4()}\n"),
                "covered": self.lab.covered,
                "kept": [path for path in (BIN, os.path.dirname(HERE)) if path.startswith("/tmp/")]}
        self.outer = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--", sys.executable,
             os.path.join(HERE, "host_init.py"), json.dumps(view)], stdout=subprocess.PIPE, text=True)
        if self.outer.stdout.readline() != "up\n":
            raise AssertionError(f"host {self.name} did not come up")
        self.init = self.child_of(self.outer.pid)
        for interface in self.cables:
            self.connect(interface)

    @staticmethod
    def child_of(parent):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat", encoding="utf-8") as stat:
                        if int(stat.read().rsplit(")", 1)[1].split()[1]) == parent:
                            return int(entry)
                except (FileNotFoundError, ProcessLookupError):
                    pass
        raise AssertionError(f"process {parent} has no child")

    def power_off(self):
        """At once: nothing says goodbye, the cables go dead."""
        if self.outer is None:
            return
        gone = os.pidfd_open(self.init)
        self.outer.kill()  # Its first process dies with it, and with that one every other.
        self.outer.wait()
        select.select([gone], [], [], DEADLINE_SECONDS)
        os.close(gone)
        for folder in job_cgroups(self.state):  # They live in the kernel, which a machine without power has lost.
            remove_cgroup(folder)
        self.outer.stdout.close()
        self.outer = self.init = None
        for relay in self.relays:
            relay.kill()
            relay.wait()
            relay.stdout.close()
        self.relays = []

    def reboot(self):
        self.power_off()
        self.boot()

    # ---- Cables.
    def plug(self, interface, *addresses, bridge=SWITCH, faults=None):
        """A cable from this interface to a bridge; `faults` puts a relay in between."""
        self.cables[interface] = (bridge, addresses, faults)
        if self.init is not None:
            self.connect(interface)
        return self

    def lab_end(self, interface):
        return f"{self.name}-{interface}"

    def connect(self, interface):
        bridge, addresses, faults = self.cables[interface]
        end = self.lab_end(interface)
        # The old pair goes with the old namespace, but not at once.
        subprocess.run(["ip", "link", "delete", end], stderr=subprocess.DEVNULL, check=False)
        ip("link", "add", "name", end, "type", "veth", "peer", "name", interface, "netns", str(self.init))
        if faults is None:
            ip("link", "set", end, "master", bridge, "up")
        else:
            self.relay(interface, bridge, faults)
        for address in addresses:
            self.net("ip", "address", "add", address, "dev", interface, *(["nodad"] if ":" in address else []))
        self.net("ip", "link", "set", interface, "up")

    def relay(self, interface, bridge, faults):
        """cable - bridge of its own - TAP - relay - TAP - bridge"""
        end, number = self.lab_end(interface), len(self.relays)
        own, near, far = (f"{self.name}-{part}{number}" for part in ("br", "n", "f"))
        subprocess.run(["ip", "link", "delete", own], stderr=subprocess.DEVNULL, check=False)
        ip("link", "add", "name", own, "type", "bridge")
        ip("link", "set", own, "up")
        ip("link", "set", end, "master", own, "up")
        relay = subprocess.Popen([sys.executable, os.path.join(HERE, "relay.py"), near, far, json.dumps(faults)],
                                 stdout=subprocess.PIPE, text=True)
        self.relays.append(relay)
        if relay.stdout.readline() != "up\n":
            raise AssertionError("the relay did not start")
        ip("link", "set", near, "master", own, "up")
        ip("link", "set", far, "master", bridge, "up")

    def cut(self, interface="eth0"):
        """The cable is pulled: no packet in or out, and nobody is told."""
        ip("link", "set", self.lab_end(interface), "down")

    def mend(self, interface="eth0"):
        ip("link", "set", self.lab_end(interface), "up")

    def bytes_sent(self, interface="eth0"):
        with open(f"/proc/{self.init}/net/dev", encoding="utf-8") as table:
            for line in table:
                name, _, numbers = line.partition(":")
                if name.strip() == interface:
                    return int(numbers.split()[8])
        raise AssertionError(f"{self.name} has no {interface}")

    def ports_to(self, port):
        """This host's ends of connections to that port of another."""
        rows = []
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.init}/net/{table}", encoding="utf-8") as lines:
                rows += [line.split() for line in lines][1:]
        return [int(row[1].split(":")[1], 16) for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]

    def rules(self, text):
        """This host's packet rules, in nft's words; those of before go."""
        nft = subprocess.run([*self.enter("--net"), "nft", "-f", "-"], input="flush ruleset\n" + text, text=True,
                             capture_output=True, check=False)
        if nft.returncode != 0:
            raise AssertionError(nft.stderr)

    def filter(self, *rules):
        """The same rules on what comes in and what goes out."""
        body = "\n".join(rules)
        self.rules("".join(f"table inet {way} {{\n chain {way} {{\n type filter hook {way} priority 0\n{body}\n }}\n}}\n"
                           for way in ("input", "output")))

    def lose(self, percent):
        self.filter(f"oifname != lo iifname != lo numgen random mod 100 < {percent} drop")

    def heal(self):
        self.rules("")

    # ---- Programs.
    def enter(self, *spaces):
        return ["nsenter", "--target", str(self.init), *spaces]

    def words(self, *command):
        return [*self.enter("--mount", "--uts", "--net", "--pid"), *command]

    def net(self, *command):
        subprocess.run([*self.enter("--net"), *command], check=True)

    def environment(self, env=None):
        return {**self.env, **({"RAYCTL_ADDRESS": self.address} if self.address else {}), **(env or {})}

    def run(self, *args, env=None, timeout=DEADLINE_SECONDS):
        """`rayctl ARGS` on this host."""
        try:
            return Result(subprocess.run(self.words(RAYCTL, *map(str, args)), env=self.environment(env), text=True,
                                         capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}\n--- stdout\n{late.stdout}\n--- stderr\n{late.stderr}\n{self.lab.logs()}") from late

    def popen(self, *args, env=None):
        return subprocess.Popen(self.words(RAYCTL, *map(str, args)), env=self.environment(env), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def ok(self, *args, **kwargs):
        done = self.run(*args, **kwargs)
        if done.code != 0:
            raise AssertionError(f"on {self.name}: rayctl {' '.join(map(str, args))}: {done!r}\n{self.lab.logs()}")
        return done

    def json(self, *args):
        return json.loads(self.ok(*args, "-o", "json").out)

    # ---- What rayctl runs here.
    def start_head(self, *flags):
        done = self.ok("start", "--head", "--port", HEAD_PORT, "--dashboard-port", "0", "--state-dir", self.state, "-o",
                       "json", *flags)
        started = json.loads(done.out)
        self.address = self.lab.address = started["address"]
        with open(started["token_file"], encoding="utf-8") as file:
            self.lab.join_token = file.read()
        with open(os.path.join(self.state, "head", "admin-token"), encoding="utf-8") as file:
            self.lab.admin_token = file.read().strip()
        return started

    def try_join(self, *flags, address=None, token=None):
        path = self.write("join-token", token or self.lab.join_token, mode=0o600)
        self.address = address or self.lab.address
        return self.run("start", "--address", self.address, "--token-file", path, "--state-dir", self.state, *flags)

    def join(self, *flags, address=None):
        done = self.try_join(*flags, address=address)
        if done.code != 0:
            raise AssertionError(f"{self.name} does not join: {done!r}\n{self.lab.logs()}")
        self.env["RAYCTL_TOKEN"] = self.lab.admin_token
        return done

    def processes(self):
        """(pid here in the lab, words) of all that runs on this host."""
        if self.init is None:
            return []
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for pid, words in processes():
            try:
                if pid != self.init and os.readlink(f"/proc/{pid}/ns/pid") == own:
                    found.append((pid, words))
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def find(self, what):
        """The pids of "head", "agent" or "shim"."""
        if what == "shim":
            return [pid for pid, words in self.processes() if os.path.basename(words[0]) == "rayctl-shim"]
        return [pid for pid, words in self.processes()
                if os.path.basename(words[0]) == "rayctl" and words[1:2] == [what]]

    def logs(self):
        text = ""
        for name in ("head.log", "agent.log"):
            path = os.path.join(self.state, "log", name)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as log:
                    text += f"--- {self.name}: {name}\n" + "".join(log.readlines()[-40:])
        return text


class Lab(Watched):
    """A switch, hosts on it, and pipes to steer ranks by."""

    deadline_seconds = DEADLINE_SECONDS

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="lab-", dir=os.environ[INSIDE])
        self.findings_dir = os.path.join(self.folder, "findings")
        os.mkdir(self.findings_dir)
        self.steps = Steps(self.folder)
        self.hosts = []
        self.bridges = []
        self.covered = []  # (file, place) pairs: hosts that boot from now on see the file there.
        self.address = self.join_token = self.admin_token = None
        self.bridge(SWITCH)

    def bridge(self, name):
        ip("link", "add", "name", name, "type", "bridge")
        ip("link", "set", name, "up")
        self.bridges.append(name)
        return name

    def bare_host(self, name):
        """A host without a cable."""
        host = Host(self, name)
        self.hosts.append(host)
        host.boot()
        return host

    def host(self, name, faults=None):
        """A host on the switch, 10.77.0.N."""
        host = self.bare_host(name)
        return host.plug("eth0", f"10.77.0.{len(self.hosts)}/24", faults=faults)

    def cluster(self, size=3, cpus=4):
        """A head with its agent on the first host, agents on the others."""
        hosts = [self.host(chr(ord("a") + number)) for number in range(size)]
        hosts[0].start_head("--num-cpus", cpus)
        for host in hosts[1:]:
            host.join("--num-cpus", cpus)
        return hosts

    def logs(self):
        return "".join(host.logs() for host in self.hosts)

    def close(self):
        for host in self.hosts:
            host.power_off()
        for name in self.bridges:
            ip("link", "delete", name)
        self.steps.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class LabTest(unittest.TestCase):
    """A lab for each test. Afterwards `rayctl stop` on every host must leave no process there."""

    def setUp(self):
        self.lab = Lab()
        self.addCleanup(self.lab.close)
        self.addCleanup(self.check_nothing_left)

    def check_nothing_left(self):
        hosts = [host for host in self.lab.hosts if host.init is not None and os.path.exists(host.state)]
        stopped = [(host.name, host.run("stop", "--state-dir", host.state)) for host in hosts]
        left = [(host.name, words) for host in hosts for _, words in host.processes()]
        logs = self.lab.logs()
        self.assertEqual(self.lab.findings(), "", "a sanitizer found something")
        self.assertEqual([(name, done) for name, done in stopped if done.code != 0], [], logs)
        self.assertEqual(left, [], f"processes were left behind\n{logs}")

    def submit(self, host, *args):
        return int(host.ok("submit", "--no-wait", *args).out.splitlines()[-1])

    def spread(self, host, line, ranks, **more):
        """Submits a job with one rank a node."""
        fields = "".join(f"{key}: {value}\n" for key, value in more.items())
        path = host.write("job.yaml", f"entrypoint: {json.dumps(line)}\n"
                          f"scaling_config: {{num_workers: {ranks}, placement_strategy: STRICT_SPREAD}}\n{fields}")
        return self.submit(host, path)

    def nodes(self, host):
        return {node["name"]: node for node in host.json("list", "nodes")["nodes"]}

    def until_node(self, host, name, state):
        return self.lab.until(lambda: (lambda node: node if node["state"] == state else None)(self.nodes(host)[name]),
                              f"{name} is {state}")

    def until_job(self, host, job, *states):
        def check():
            now = host.json("describe", job)
            return now if now["state"] in states else None

        return self.lab.until(check, f"job {job} is {' or '.join(states)}")

    def say(self, *words):
        return f"echo {' '.join(words)} > {self.lab.steps.events_path}"

    def hear(self, gate):
        return f"read word < {self.lab.steps.gate(gate)}"


__all__ = ["DEADLINE_SECONDS", "HEAD_PORT", "Host", "Lab", "LabTest", "ip", "wait_gone"]
