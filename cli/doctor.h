#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

// What `rayctl doctor` finds out and what it makes of it: probes gather facts, and judging them reads nothing else.
namespace rayctl::cli::doctor {

using Time = std::chrono::system_clock::time_point;

struct MachineFacts {
  std::string host_name;
  std::string host_lookup_error;            // Of its own name; empty: it is known.
  std::vector<std::string> host_addresses;  // What its own name means here.
  std::vector<std::string> addresses;       // Of interfaces that are up, loopback and link-local ones left out.
  std::uint64_t descriptors_soft = 0;
  std::uint64_t descriptors_hard = 0;
  bool cgroup_v1 = false;
  bool cgroup_v2 = false;
  std::vector<std::string> cgroup_remarks;  // What cannot be had of them by this user, a sentence each.
};

struct FolderFacts {
  std::string state_dir;
  std::string file_system;  // "ext4", "nfs"; empty: not known by name.
  bool network_file_system = false;
  std::string error;  // It cannot be looked at or written to; empty: it can.
  std::uint64_t free_bytes = 0;
  std::string runtime_root;
  bool runtime_exists = false;
  bool runtime_is_folder = false;
  std::uint32_t runtime_owner = 0;
  std::uint32_t own_uid = 0;
  std::uint32_t runtime_mode = 0;  // Permission bits.
};

struct NodeFacts {
  std::string name;
  std::string address;
  std::string version;
};

// Each is filled as far as what stands before it went well.
struct HeadFacts {
  absl::Status chosen;  // Which head, and with which token. UNAVAILABLE: none is named and none runs here.
  std::string address;
  bool insecure = false;
  bool runs_here = false;
  std::string lookup_error;
  std::vector<std::string> host_addresses;  // What the host in its address means here.
  absl::Status reached;                     // The connection, and whether it is a head of the token's cluster.
  absl::Status answered;                    // An authorised call.
  std::string known_as;                     // The address that the head tells others.
  std::string version;
  std::string own_version;
  std::uint32_t api = 0;
  std::uint32_t own_api = 0;
  std::vector<NodeFacts> nodes;
  std::optional<Time> newest_heartbeat;  // By the head's clock.
  Time now{};                            // By this machine's, when the head answered.
};

struct Facts {
  MachineFacts machine;
  FolderFacts folders;
  HeadFacts head;
};

enum class Verdict { kWell, kWarning, kWrong };

struct Finding {
  std::string check;
  Verdict verdict = Verdict::kWell;
  std::string message;  // What was found and, where it is not well, what to do.
};

// In the order in which a person would look. Pure.
std::vector<Finding> Judge(const Facts& facts);

// The probes. Change nothing but a file that they remove again.
MachineFacts ProbeMachine();
FolderFacts ProbeFolders(const std::string& state_dir, const std::string& runtime_root);
// What the host of "host:port" means here; `error` on failure.
std::vector<std::string> LookUp(const std::string& host, std::string& error);

}  // namespace rayctl::cli::doctor
