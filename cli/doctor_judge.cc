#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/str_join.h"
#include "base/addresses.h"
#include "base/status_text.h"
#include "cli/doctor.h"

namespace rayctl::cli::doctor {
namespace {

constexpr std::uint64_t kDescriptorsMin = 4096;         // A head of some hundred nodes, an agent of some hundred ranks.
constexpr std::uint64_t kFreeBytesMin = 1ULL << 30;     // Below this a warning,
constexpr std::uint64_t kFreeBytesWrong = 64ULL << 20;  // below this the journal is in danger.
constexpr std::uint32_t kOthersMayEnter = 077;
// Heartbeats are 2 to 4 s apart, and the answer takes its time.
constexpr std::chrono::seconds kClockNoise{10};
// Certificates start a day before they are made, and nobody can join a head whose certificate is still to come.
constexpr std::chrono::hours kClockWrong{12};

bool AllLoopback(const std::vector<std::string>& addresses) {
  return !addresses.empty() && std::all_of(addresses.begin(), addresses.end(), net::IsLoopbackHost);
}

std::string Words(std::chrono::seconds time) {
  const auto count = time.count();
  if (count >= 7200) {
    return fmt::format("{} hours", count / 3600);
  }
  return count >= 120 ? fmt::format("{} minutes", count / 60) : fmt::format("{} s", count);
}

class Judgment {
 public:
  explicit Judgment(const Facts& facts) : facts_(facts) {}

  std::vector<Finding> All() {
    HostName();
    Addresses();
    Head();
    StateFolder();
    Disk();
    RuntimeFolder();
    Descriptors();
    Cgroups();
    return std::move(findings_);
  }

 private:
  void Say(const char* check, Verdict verdict, std::string message) {
    findings_.push_back({check, verdict, std::move(message)});
  }

  void HostName() {
    const MachineFacts& machine = facts_.machine;
    if (!machine.host_lookup_error.empty()) {
      Say("host name", Verdict::kWarning,
          fmt::format("this machine's own name {} is not known here: {}; rayctl does without it, programs that look it "
                      "up may not: add it to /etc/hosts",
                      machine.host_name, machine.host_lookup_error));
    } else if (AllLoopback(machine.host_addresses)) {
      Say("host name", Verdict::kWell,
          fmt::format("{} means {} here; harmless, as ranks are told the address and the interface of their node",
                      machine.host_name, absl::StrJoin(machine.host_addresses, ", ")));
    } else {
      Say("host name", Verdict::kWell,
          fmt::format("{} means {}", machine.host_name, absl::StrJoin(machine.host_addresses, ", ")));
    }
  }

  void Addresses() {
    const std::vector<std::string>& addresses = facts_.machine.addresses;
    if (addresses.empty()) {
      Say("addresses", Verdict::kWarning,
          "this machine has no address but loopback: a cluster of this machine alone works, others cannot reach it");
    } else if (addresses.size() == 1) {
      Say("addresses", Verdict::kWell, fmt::format("others reach this machine at {}", addresses.front()));
    } else {
      Say("addresses", Verdict::kWell,
          fmt::format("several: {}; the one on the way to the head is taken, on the head's machine the first; `rayctl "
                      "start --node-ip-address` chooses another",
                      absl::StrJoin(addresses, ", ")));
    }
  }

  void Head() {
    const HeadFacts& head = facts_.head;
    if (head.address.empty()) {
      const bool none = absl::IsUnavailable(head.chosen);
      Say("head", none ? Verdict::kWarning : Verdict::kWrong,
          none ? "none is named and none runs here: only this machine was looked at; --address=HOST:PORT names one"
               : Text(head.chosen));
      return;
    }
    if (!head.lookup_error.empty()) {
      Say("head's name", Verdict::kWrong,
          fmt::format("the host in {} is not known here: {}; give the head's address in numbers, or mend /etc/hosts or "
                      "the name server",
                      head.address, head.lookup_error));
      return;
    }
    if (AllLoopback(head.host_addresses) && !head.runs_here) {
      Say("head's name", Verdict::kWrong,
          fmt::format("{} means this machine itself ({}), and no head runs here; give the address that `rayctl start "
                      "--head` printed",
                      head.address, absl::StrJoin(head.host_addresses, ", ")));
      return;
    }
    Say("head's name", Verdict::kWell,
        fmt::format("{} means {}", head.address, absl::StrJoin(head.host_addresses, ", ")));
    if (!head.chosen.ok()) {
      Say("credentials", Verdict::kWrong, Text(head.chosen));
    }
    if (!head.reached.ok()) {
      Say("head", Verdict::kWrong, Text(head.reached));
      return;
    }
    if (!head.chosen.ok()) {
      return;
    }
    Say("head", Verdict::kWell,
        head.insecure ? fmt::format("{} is open, without TLS", head.address)
                      : fmt::format("{} is open, and is a head of this token's cluster", head.address));
    Answer();
  }

  void Answer() {
    const HeadFacts& head = facts_.head;
    if (!head.answered.ok()) {
      Say("credentials", Verdict::kWrong, Text(head.answered));
      return;
    }
    Say("credentials", Verdict::kWell, head.insecure ? "none are asked for" : "the head takes this token");
    if (head.known_as != head.address) {
      Say("head's address", Verdict::kWell,
          fmt::format("it tells others {}; reached here at {}", head.known_as, head.address));
    }
    if (head.api != head.own_api) {
      Say("version", Verdict::kWrong,
          fmt::format("the head ({}) speaks API {}, this program ({}) API {}; install the same version on both",
                      head.version, head.api, head.own_version, head.own_api));
    } else if (head.version != head.own_version) {
      Say("version", Verdict::kWarning,
          fmt::format("the head is {}, this program {}; they understand each other, the same version on both is better",
                      head.version, head.own_version));
    } else {
      Say("version", Verdict::kWell, fmt::format("{} on both sides", head.version));
    }
    for (const NodeFacts& node : head.nodes) {
      if (node.version != head.version) {
        Say("version", Verdict::kWarning,
            fmt::format("node {} runs {}, the head {}; install the same version on every node", node.name, node.version,
                        head.version));
      }
      if (head.nodes.size() > 1 && net::IsLoopbackHost(node.address)) {
        Say("node's address", Verdict::kWrong,
            fmt::format(
                "node {} is known as {}, which other nodes cannot reach: gangs over several nodes will not meet; "
                "start it again with --node-ip-address",
                node.name, node.address));
      }
    }
    Clock();
  }

  void Clock() {
    const HeadFacts& head = facts_.head;
    if (!head.newest_heartbeat) {
      Say("clock", Verdict::kWarning, "no node is alive, so the head's clock is not known");
      return;
    }
    const auto ahead = std::chrono::duration_cast<std::chrono::seconds>(head.now - *head.newest_heartbeat);
    const auto distance = ahead < ahead.zero() ? -ahead : ahead;
    if (distance <= kClockNoise) {
      Say("clock", Verdict::kWell, fmt::format("within {} s of the head's", kClockNoise.count()));
      return;
    }
    Say("clock", distance >= kClockWrong ? Verdict::kWrong : Verdict::kWarning,
        fmt::format("{} {} the head's; times in logs will not match{}: set both by the same time server",
                    Words(distance), ahead > ahead.zero() ? "ahead of" : "behind",
                    distance >= kClockWrong ? ", and certificates may count as not yet valid" : ""));
  }

  void StateFolder() {
    const FolderFacts& folders = facts_.folders;
    if (folders.network_file_system) {
      Say("state folder", Verdict::kWrong,
          fmt::format("{} is on {}, where the journal and its locks break; choose a local folder by --state-dir or "
                      "RAYCTL_STATE_DIR",
                      folders.state_dir, folders.file_system));
    } else if (!folders.error.empty()) {
      Say("state folder", Verdict::kWrong,
          fmt::format("{}: {}; choose another by --state-dir or RAYCTL_STATE_DIR", folders.state_dir, folders.error));
    } else {
      Say("state folder", Verdict::kWell,
          fmt::format("{}{}", folders.state_dir,
                      folders.file_system.empty() ? "" : fmt::format(" on {}", folders.file_system)));
    }
  }

  void Disk() {
    const FolderFacts& folders = facts_.folders;
    if (!folders.error.empty()) {
      return;
    }
    const std::string free = fmt::format("{} MiB free for {}", folders.free_bytes >> 20, folders.state_dir);
    if (folders.free_bytes < kFreeBytesWrong) {
      Say("disk", Verdict::kWrong, free + "; the head takes no job that it cannot record: make room");
    } else if (folders.free_bytes < kFreeBytesMin) {
      Say("disk", Verdict::kWarning, free + "; logs and checkpoints will fill it: make room");
    } else {
      Say("disk", Verdict::kWell, free);
    }
  }

  void RuntimeFolder() {
    const FolderFacts& folders = facts_.folders;
    if (!folders.runtime_exists) {
      Say("socket folder", Verdict::kWell, fmt::format("{} is made at the first start", folders.runtime_root));
    } else if (!folders.runtime_is_folder) {
      Say("socket folder", Verdict::kWrong, fmt::format("{} is no folder; remove it", folders.runtime_root));
    } else if (folders.runtime_owner != folders.own_uid) {
      Say("socket folder", Verdict::kWrong,
          fmt::format("{} belongs to user {}, not to user {}: somebody else made it; have it removed",
                      folders.runtime_root, folders.runtime_owner, folders.own_uid));
    } else if ((folders.runtime_mode & kOthersMayEnter) != 0) {
      Say("socket folder", Verdict::kWrong,
          fmt::format("{} is open to others (mode {:o}); chmod 700 it", folders.runtime_root, folders.runtime_mode));
    } else {
      Say("socket folder", Verdict::kWell, folders.runtime_root);
    }
  }

  void Descriptors() {
    const MachineFacts& machine = facts_.machine;
    if (machine.descriptors_hard < kDescriptorsMin) {
      Say("descriptors", Verdict::kWarning,
          fmt::format("a process may open {} files; daemons of a large cluster want {}: raise the hard limit (ulimit "
                      "-Hn, LimitNOFILE=)",
                      machine.descriptors_hard, kDescriptorsMin));
    } else {
      Say("descriptors", Verdict::kWell,
          fmt::format("{}, which the daemons raise to {}", machine.descriptors_soft, machine.descriptors_hard));
    }
  }

  void Cgroups() {
    const MachineFacts& machine = facts_.machine;
    const std::string layout = machine.cgroup_v1 && machine.cgroup_v2 ? "v1 with a v2 tree beside it"
                               : machine.cgroup_v2                    ? "v2"
                               : machine.cgroup_v1                    ? "v1"
                                                                      : "none";
    if (!machine.cgroup_v1 && !machine.cgroup_v2) {
      Say("cgroups", Verdict::kWarning, "none; processes of jobs are found by their environment instead");
    } else if (!machine.cgroup_remarks.empty()) {
      Say("cgroups", Verdict::kWarning, fmt::format("{}: {}", layout, absl::StrJoin(machine.cgroup_remarks, "; ")));
    } else {
      Say("cgroups", Verdict::kWell, layout);
    }
  }

  const Facts& facts_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> Judge(const Facts& facts) { return Judgment(facts).All(); }

}  // namespace rayctl::cli::doctor
