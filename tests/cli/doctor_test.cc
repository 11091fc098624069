#include "cli/doctor.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

namespace rayctl::cli::doctor {
namespace {

using namespace std::chrono_literals;

const Time kNow = Time(std::chrono::seconds(1'700'000'000));

Facts Well() {
  Facts facts;
  facts.machine = {.host_name = "b",
                   .host_lookup_error = "",
                   .host_addresses = {"10.0.0.2"},
                   .addresses = {"10.0.0.2 (eth0)"},
                   .descriptors_soft = 1024,
                   .descriptors_hard = 1 << 20,
                   .cgroup_v1 = false,
                   .cgroup_v2 = true};
  facts.folders = {.state_dir = "/var/rayctl",
                   .file_system = "ext4",
                   .network_file_system = false,
                   .error = "",
                   .free_bytes = 100ULL << 30,
                   .runtime_root = "/tmp/rayctl-7",
                   .runtime_exists = true,
                   .runtime_is_folder = true,
                   .runtime_owner = 7,
                   .own_uid = 7,
                   .runtime_mode = 0700};
  HeadFacts& head = facts.head;
  head.address = head.known_as = "10.0.0.1:6379";
  head.host_addresses = {"10.0.0.1"};
  head.version = head.own_version = "0.2.0";
  head.api = head.own_api = 1;
  head.nodes = {{"a", "10.0.0.1", "0.2.0"}, {"b", "10.0.0.2", "0.2.0"}};
  head.newest_heartbeat = kNow - 2s;
  head.now = kNow;
  return facts;
}

struct Case {
  const char* what;
  std::function<void(Facts&)> change;
  const char* check;
  Verdict verdict;
  const char* words;  // In the message, the fix among them.
};

const std::vector<Case> kCases = {
    {"own name unknown", [](Facts& f) { f.machine.host_lookup_error = "unknown"; }, "host name", Verdict::kWarning,
     "add it to /etc/hosts"},
    {"own name is loopback", [](Facts& f) { f.machine.host_addresses = {"127.0.1.1"}; }, "host name", Verdict::kWell,
     "harmless"},
    {"no address", [](Facts& f) { f.machine.addresses.clear(); }, "addresses", Verdict::kWarning,
     "others cannot reach it"},
    {"two addresses", [](Facts& f) { f.machine.addresses.emplace_back("10.1.0.2 (eth1)"); }, "addresses",
     Verdict::kWell, "--node-ip-address"},
    {"no head named",
     [](Facts& f) {
       f.head = {};
       f.head.chosen = absl::UnavailableError("none");
     },
     "head", Verdict::kWarning, "--address=HOST:PORT"},
    {"several heads run here",
     [](Facts& f) {
       f.head = {};
       f.head.chosen = absl::FailedPreconditionError("choose one with --address");
     },
     "head", Verdict::kWrong, "choose one with --address"},
    {"head's name unknown", [](Facts& f) { f.head.lookup_error = "unknown"; }, "head's name", Verdict::kWrong,
     "/etc/hosts or the name server"},
    {"head's name is loopback",
     [](Facts& f) {
       f.head.host_addresses = {"127.0.0.1", "::1"};
     },
     "head's name", Verdict::kWrong, "this machine itself"},
    {"no token", [](Facts& f) { f.head.chosen = absl::UnauthenticatedError("give --token"); }, "credentials",
     Verdict::kWrong, "give --token"},
    {"port blocked", [](Facts& f) { f.head.reached = absl::UnavailableError("a firewall may drop port 6379"); }, "head",
     Verdict::kWrong, "firewall"},
    {"token refused", [](Facts& f) { f.head.answered = absl::UnauthenticatedError("it has expired"); }, "credentials",
     Verdict::kWrong, "expired"},
    {"known by another address", [](Facts& f) { f.head.known_as = "10.9.0.1:6379"; }, "head's address", Verdict::kWell,
     "10.9.0.1:6379; reached here at 10.0.0.1:6379"},
    {"another protocol", [](Facts& f) { f.head.api = 2; }, "version", Verdict::kWrong, "install the same version"},
    {"another version", [](Facts& f) { f.head.own_version = "0.1.0"; }, "version", Verdict::kWarning, "0.1.0"},
    {"a node of another version", [](Facts& f) { f.head.nodes[1].version = "0.1.0"; }, "version", Verdict::kWarning,
     "node b runs 0.1.0"},
    {"a node known by loopback", [](Facts& f) { f.head.nodes[1].address = "127.0.0.1"; }, "node's address",
     Verdict::kWrong, "--node-ip-address"},
    {"clock a minute off", [](Facts& f) { f.head.now += 5min; }, "clock", Verdict::kWarning, "5 minutes ahead of"},
    {"clock hours off", [](Facts& f) { f.head.now -= 30h + 10s; }, "clock", Verdict::kWrong, "30 hours behind"},
    {"no node alive", [](Facts& f) { f.head.newest_heartbeat.reset(); }, "clock", Verdict::kWarning, "not known"},
    {"state on NFS",
     [](Facts& f) {
       f.folders.file_system = "nfs4";
       f.folders.network_file_system = true;
     },
     "state folder", Verdict::kWrong, "on nfs4"},
    {"state not writable", [](Facts& f) { f.folders.error = "permission denied"; }, "state folder", Verdict::kWrong,
     "--state-dir"},
    {"disk nearly full", [](Facts& f) { f.folders.free_bytes = 500ULL << 20; }, "disk", Verdict::kWarning, "500 MiB"},
    {"disk full", [](Facts& f) { f.folders.free_bytes = 1 << 20; }, "disk", Verdict::kWrong, "make room"},
    {"socket folder of another", [](Facts& f) { f.folders.runtime_owner = 8; }, "socket folder", Verdict::kWrong,
     "belongs to user 8"},
    {"socket folder open", [](Facts& f) { f.folders.runtime_mode = 0755; }, "socket folder", Verdict::kWrong,
     "chmod 700"},
    {"socket folder a file", [](Facts& f) { f.folders.runtime_is_folder = false; }, "socket folder", Verdict::kWrong,
     "remove it"},
    {"few descriptors", [](Facts& f) { f.machine.descriptors_hard = 1024; }, "descriptors", Verdict::kWarning,
     "LimitNOFILE="},
    {"no cgroups", [](Facts& f) { f.machine.cgroup_v2 = false; }, "cgroups", Verdict::kWarning, "environment"},
    {"cgroups not ours", [](Facts& f) { f.machine.cgroup_remarks = {"memory is not enforced here"}; }, "cgroups",
     Verdict::kWarning, "v2: memory is not enforced here"},
};

TEST_CASE("each fact that is not well is found, judged and explained", "[doctor]") {
  for (const Case& each : kCases) {
    CAPTURE(each.what);
    Facts facts = Well();
    each.change(facts);
    const std::vector<Finding> findings = Judge(facts);
    const auto found = std::find_if(findings.begin(), findings.end(), [&each](const Finding& finding) {
      return finding.check == each.check && finding.verdict == each.verdict &&
             finding.message.find(each.words) != std::string::npos;
    });
    CHECK(found != findings.end());
    // One cause is one finding.
    CHECK(std::count_if(findings.begin(), findings.end(), [&each](const Finding& finding) {
            return finding.verdict != Verdict::kWell && finding.check != each.check;
          }) == 0);
  }
}

TEST_CASE("a machine on which all is well has nothing but good findings", "[doctor]") {
  for (const Finding& finding : Judge(Well())) {
    CAPTURE(finding.check, finding.message);
    CHECK(finding.verdict == Verdict::kWell);
  }
}

TEST_CASE("what cannot be known is not judged", "[doctor]") {
  Facts facts = Well();
  facts.head.reached = absl::UnavailableError("timed out");
  for (const Finding& finding : Judge(facts)) {
    CHECK(finding.check != "clock");
    CHECK(finding.check != "version");
    CHECK(finding.check != "credentials");
  }
}

}  // namespace
}  // namespace rayctl::cli::doctor
