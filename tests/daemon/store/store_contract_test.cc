// What every store keeps to, whatever it stands on.
#include <catch2/catch.hpp>

#include "daemon/store/store.h"
#include "tests/daemon/store/sample_records.h"
#include "tests/daemon/store/temp_dir.h"

namespace rayctl::store {
namespace {

std::vector<head::RecordKey> Keys(Store& store) {
  const auto records = store.Load();
  REQUIRE(records.ok());
  std::vector<head::RecordKey> keys;
  for (const head::Record& record : *records) {
    keys.push_back(head::KeyOf(record));
  }
  return keys;
}

TEST_CASE("a store gives back the newest of each record in key order", "[store]") {
  const TempDir folder;
  const bool durable = GENERATE(false, true);
  CAPTURE(durable);
  std::unique_ptr<Store> store = MakeMemoryStore();
  if (durable) {
    store = *OpenSqliteStore(folder.File("journal.db"));
  }
  CHECK(Keys(*store).empty());
  CHECK(store->Commit({}).ok());

  REQUIRE(store
              ->Commit({head::Record{SampleToken()}, head::Record{SampleJob(12)}, head::Record{SampleJob(2)},
                        head::Record{SampleNode()}, head::Record{SampleCluster()}})
              .ok());
  using Kind = head::RecordKind;
  CHECK(Keys(*store) ==
        std::vector<head::RecordKey>{
            {Kind::kCluster, 0}, {Kind::kJob, 2}, {Kind::kJob, 12}, {Kind::kNode, 9}, {Kind::kToken, 5}});

  head::JobRecord changed = SampleJob(2);
  changed.message = "changed";
  changed.attempt.ranks.clear();
  REQUIRE(store->Commit({head::Record{SampleJob(2)}, head::Record{changed}}).ok());
  const auto records = store->Load();
  REQUIRE(records.ok());
  CHECK(std::get<head::JobRecord>(records->at(1)).message == "changed");
  CHECK(std::get<head::JobRecord>(records->at(1)).attempt.ranks.empty());
  CHECK(std::get<head::JobRecord>(records->at(2)).spec == SampleJob().spec);

  REQUIRE(store->Commit({head::RecordKey{Kind::kJob, 12}, head::RecordKey{Kind::kJob, 99}}).ok());
  CHECK(Keys(*store).size() == 4);
  // Within one commit the order counts.
  REQUIRE(store
              ->Commit({head::RecordKey{Kind::kJob, 2}, head::Record{SampleJob(2)}, head::Record{SampleJob(3)},
                        head::RecordKey{Kind::kJob, 3}})
              .ok());
  CHECK(Keys(*store) ==
        std::vector<head::RecordKey>{{Kind::kCluster, 0}, {Kind::kJob, 2}, {Kind::kNode, 9}, {Kind::kToken, 5}});
}

}  // namespace
}  // namespace rayctl::store
