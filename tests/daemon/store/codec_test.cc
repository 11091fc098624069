#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>

#include "daemon/store/store.h"
#include "journal.pb.h"
#include "tests/daemon/store/sample_records.h"

namespace rayctl::store {
namespace {

namespace pb = ::rayctl::journal::v1;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

TEST_CASE("every field of every record survives the disk", "[store]") {
  // Fields are compared by encoding again: a field that decoding drops encodes as its default.
  for (const head::Record& record : {head::Record{SampleCluster()}, head::Record{SampleJob()},
                                     head::Record{SampleNode()}, head::Record{SampleToken()}}) {
    const std::string bytes = Encode(record);
    const auto decoded = Decode(head::KeyOf(record).kind, bytes);
    REQUIRE(decoded.ok());
    CHECK(head::KeyOf(*decoded) == head::KeyOf(record));
    CHECK(Hex(Encode(*decoded)) == Hex(bytes));
  }
  const auto job = std::get<head::JobRecord>(*Decode(head::RecordKind::kJob, Encode(SampleJob())));
  CHECK(job.spec == SampleJob().spec);
  CHECK(job.attempt.ranks[1].end == SampleEnd());
  CHECK(job.exit_code == 0);
  CHECK(job.failed_rank == 0u);
  CHECK(job.stop_state == JobState::kFailed);
}

TEST_CASE("the limits that a rank met are kept", "[store]") {
  head::JobRecord job = SampleJob();
  link::RankEnd& end = job.attempt.ranks[1].end;
  end.memory_peak_bytes = 11;
  end.memory_bytes_max = 12;
  end.pids_max_reached = 13;
  const absl::StatusOr<head::Record> back = Decode(head::RecordKind::kJob, Encode(job));
  REQUIRE(back.ok());
  CHECK(std::get<head::JobRecord>(*back).attempt.ranks[1].end == end);
}

TEST_CASE("the bytes of records are frozen", "[store][golden]") {
  CHECK(Hex(Encode(SampleCluster())) == "08011203632d3118022003280530063804");
  CHECK(Hex(Encode(SampleToken())) ==
        "08051202636918032220fefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefe280b300c3801");
  CHECK(Hex(Encode(SampleNode())) ==
        "08091201611a0831302e302e302e392204626f6f742a090a034350551080f1042a100a066d656d6f72791080808080c0b802"
        "320a0a047261636b1202723138014203776879480150015a05302e312e3060016a046574683070a09c0178afea01800104");
  CHECK(Hex(Encode(SampleJob())) ==
        "080712f3010a066469676974731a072e2f747261696e1a062d2d6661737422060a014112013122060a01421201322a0a7b22"
        "6c72223a302e317d3002380442090a0343505510a09c0142080a034750551088274804520a0a047261636b120272315a0448"
        "32303062052f6461746168ffffffffffffffffff0172067465616d2d6178fbffffffffffffffff01800100880180bab70390"
        "01c8dc0398018452a0018827a80102b00103ba01046c6f7373c201036d696eca014064646464646464646464646464646464"
        "6464646464646464646464646464646464646464646464646464646464646464646464646464646464646464646464641a03"
        "616e6e22057265712d31280630043a0974696d6564206f757440004802526f0803120c08011a03108827200228d209124d08"
        "0210011a03108827200328d209323b08031009180120012a186578656320747261696e3a206e6f20737563682066696c6530"
        "01380140014a05626f6f6d0a50959a97ece39fe7cb175801380118a19c01220831302e302e302e312801588180a8b1e39fe7"
        "cb17608280a8b1e39fe7cb17688380a8b1e39fe7cb1772056c6173740a7800800104880108");
}

TEST_CASE("spans that no clock can count are damage", "[store]") {
  for (const std::int64_t millis :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    for (const auto set : {&pb::JobSpecRecord::set_timeout_millis, &pb::JobSpecRecord::set_agent_grace_millis,
                           &pb::JobSpecRecord::set_grace_period_millis, &pb::JobSpecRecord::set_head_grace_millis}) {
      pb::JobRecord record;
      REQUIRE(record.ParseFromString(Encode(SampleJob())));
      (record.mutable_spec()->*set)(millis);
      CHECK(Decode(head::RecordKind::kJob, record.SerializeAsString()).status().code() == absl::StatusCode::kDataLoss);
    }
  }
}

TEST_CASE("bytes that are no record are told apart", "[store]") {
  CHECK(Decode(head::RecordKind::kJob, "\xff\xff\xff").status().code() == absl::StatusCode::kDataLoss);
  CHECK(Decode(head::RecordKind::kJob, "").status().code() == absl::StatusCode::kDataLoss);  // No state.
  CHECK(Decode(static_cast<head::RecordKind>(77), "").status().code() == absl::StatusCode::kDataLoss);
  const std::string bytes = Encode(SampleJob());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    (void)Decode(head::RecordKind::kJob, std::string_view(bytes).substr(0, length));  // Must not crash.
  }
}

}  // namespace
}  // namespace rayctl::store
