#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rayctl::working_dir {

// The rules of one ignore file, in the syntax of gitignore(5): negation, anchors, `**`, folders only.
class IgnoreRules {
 public:
  enum class Verdict {
    kNone,     // No rule speaks of it: a rule file further up may.
    kIgnored,  // And so is all that is below.
    kKept,     // By a negated rule.
  };

  static IgnoreRules Parse(std::string_view text);

  // `path` is relative to the folder of the ignore file: "a/b.py". The last rule that matches decides.
  Verdict Judge(std::string_view path, bool is_folder) const;

 private:
  struct Rule {
    std::vector<std::string> segments;  // Of the pattern; "**" stands for any number of folders.
    bool negated = false;
    bool folders_only = false;
  };
  std::vector<Rule> rules_;
};

}  // namespace rayctl::working_dir
