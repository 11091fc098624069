#include "cli/job_file_tune.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "cli/command_line.h"

namespace rayctl::cli {
namespace {

constexpr std::int64_t kManyMax = std::numeric_limits<std::int32_t>::max();

// What may stand behind a name in the search space.
struct Form {
  std::string_view name;
  std::size_t numbers;  // How many numbers; 0: a list of any values.
  std::string_view expected;
  bool ordered;  // The first two are bounds.
};
constexpr std::array<Form, 9> kForms{{{"uniform", 2, "[low, high]", true},
                                      {"quniform", 3, "[low, high, step]", true},
                                      {"loguniform", 2, "[low, high]", true},
                                      {"qloguniform", 3, "[low, high, step]", true},
                                      {"randn", 2, "[mean, deviation]", false},
                                      {"randint", 2, "[low, high]", true},
                                      {"lograndint", 2, "[low, high]", true},
                                      {"choice", 0, "a list of values", false},
                                      {"grid_search", 0, "a list of values", false}}};

void CheckForm(YamlWalk& walk, const Form& form, const Place& place) {
  const std::vector<Place> items = walk.Items(place, form.expected);
  if (form.numbers == 0) {
    if (items.empty() && place.node.IsSequence()) {
      walk.Fail(place, "expected at least one value");
    }
    walk.Json(place);
    return;
  }
  if (items.size() != form.numbers) {
    walk.Fail(place, fmt::format("expected {}", form.expected));
    return;
  }
  const bool whole = form.name.ends_with("randint");
  std::vector<double> numbers;
  for (const Place& item : items) {
    numbers.push_back(whole ? static_cast<double>(walk.Whole(item, std::numeric_limits<std::int64_t>::min(),
                                                             std::numeric_limits<std::int64_t>::max()))
                            : walk.Number(item));
  }
  if (form.ordered && numbers[0] >= numbers[1]) {
    walk.Fail(place, fmt::format("expected {} with low below high", form.expected));
  }
  if (form.name.find("log") != std::string_view::npos && numbers[0] <= 0) {
    walk.Fail(items[0], "expected a number above 0, as its logarithm is taken");
  }
}

void CheckSpace(YamlWalk& walk, const Place& place, int depth) {
  constexpr int kDepthMax = 32;
  if (depth > kDepthMax) {
    walk.Fail(place, fmt::format("expected at most {} levels", kDepthMax));
  }
  if (!walk.ok()) {
    return;
  }
  if (!place.node.IsMap()) {
    walk.Json(place);
    return;
  }
  const auto members = walk.Members(place, "a mapping");
  if (members.size() == 1) {
    const auto& [name, value] = members.front();
    std::vector<std::string> names;
    for (const Form& form : kForms) {
      if (form.name == name) {
        CheckForm(walk, form, value);
        return;
      }
      names.emplace_back(form.name);
    }
    // One member that holds a list and is spelled nearly like a form is a slip of the pen, not a nested mapping.
    if (value.node.IsSequence() && Nearest(name, names)) {
      walk.Fail(value, fmt::format("no such form of search space{}", DidYouMean(name, names)));
      return;
    }
  }
  for (const auto& [name, value] : members) {
    CheckSpace(walk, value, depth + 1);
  }
}

std::vector<YamlWalk::Field> WithType(YamlWalk& walk, const std::vector<std::string>& types,
                                      std::vector<YamlWalk::Field> fields) {
  fields.insert(fields.begin(), {"type", [&walk, types](const Place& at) { walk.OneOf(at, types); }});
  return fields;
}

void CheckTyped(YamlWalk& walk, const Place& place, const std::vector<std::string>& types,
                std::vector<YamlWalk::Field> fields) {
  walk.Fields(place, WithType(walk, types, std::move(fields)));
  if (walk.ok() && !place.node["type"].IsDefined()) {
    walk.Fail(place, "expected a type");
  }
}

void CheckPoints(YamlWalk& walk, const Place& place) {
  for (const Place& point : walk.Items(place, "a list of mappings")) {
    walk.Members(point, "a mapping of parameters");
    walk.Json(point);
  }
}

}  // namespace

void CheckTuneSection(YamlWalk& walk, const Place& tune) {
  const auto text = [&](const Place& at) { walk.Text(at); };
  const auto number = [&](const Place& at) { walk.Number(at); };
  const auto boolean = [&](const Place& at) { walk.Boolean(at); };
  const auto count = [&](const Place& at) { walk.Whole(at, 1, kManyMax); };
  const auto mode = [&](const Place& at) { walk.OneOf(at, {"min", "max"}); };
  const auto space = [&](const Place& at) {
    walk.Members(at, "a mapping of parameters");
    CheckSpace(walk, at, 0);
  };
  const auto points = [&](const Place& at) { CheckPoints(walk, at); };
  walk.Fields(
      tune,
      {
          {"num_samples", [&](const Place& at) { walk.Whole(at, -1, kManyMax); }},
          {"metric", text},
          {"mode", mode},
          {"search_alg",
           [&](const Place& at) {
             CheckTyped(
                 walk, at, {"random", "sobol", "tpe", "cmaes", "optuna", "hyperopt"},
                 {{"seed", [&](const Place& seed) { walk.Whole(seed, 0, std::numeric_limits<std::int64_t>::max()); }},
                  {"metric", text},
                  {"mode", mode},
                  {"max_concurrent", count},
                  {"points_to_evaluate", points}});
           }},
          {"scheduler",
           [&](const Place& at) {
             CheckTyped(walk, at, {"fifo", "asha", "hyperband", "median", "pbt"},
                        {{"time_attr", text},
                         {"metric", text},
                         {"mode", mode},
                         {"max_t", number},
                         {"grace_period", number},
                         {"reduction_factor", number},
                         {"brackets", count},
                         {"min_samples_required", count},
                         {"perturbation_interval", number},
                         {"quantile_fraction", number},
                         {"resample_probability", number},
                         {"hyperparam_mutations", space},
                         {"hard_stop", boolean}});
           }},
          {"param_space", space},
          {"max_concurrent_trials", count},
          {"time_budget", [&](const Place& at) { walk.Nanoseconds(at); }},
          {"stop",
           [&](const Place& at) {
             for (const auto& [name, value] : walk.Members(at, "a mapping such as {training_iteration: 10}")) {
               walk.Number(value);
             }
           }},
          {"points_to_evaluate", points},
      });
}

}  // namespace rayctl::cli
