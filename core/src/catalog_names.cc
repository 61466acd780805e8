#include "catalog_names.h"

#include <algorithm>
#include <array>
#include <vector>

namespace ns_dist {
namespace {

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<std::string> words_of_name(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.') {
      words.back() += c;
    } else if (c >= 'A' && c <= 'Z') {
      words.back() += static_cast<char>(c - 'A' + 'a');
    } else {
      words.emplace_back();
    }
  }
  std::erase(words, "");
  return words;
}

std::string joined(const std::vector<std::string>& words, std::string_view between = "") {
  std::string name;
  for (const std::string& word : words) {
    if (!name.empty()) name += between;
    name += word;
  }
  return name;
}

}  // namespace

std::string folded_name(std::string_view name, std::string_view between) {
  constexpr std::array<std::string_view, 10> kOfVendors = {"nvidia",     "geforce", "tesla",    "amd", "instinct",
                                                           "generation", "edition", "standard", "aws", "ec2"};
  std::vector<std::string> words = words_of_name(name);
  std::erase_if(words, [&](const std::string& word) { return is_one_of(kOfVendors, word); });
  return joined(words, between);
}

std::string folded_hub_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == 0 || slash == std::string_view::npos || name.find('/', slash + 1) != std::string_view::npos ||
      name.front() == '.' || name.ends_with(".json")) {
    return "";
  }
  constexpr std::array<std::string_view, 12> kVariants = {"instruct", "chat", "base", "hf",   "it",   "pt",
                                                          "thinking", "bf16", "fp8",  "2507", "0905", "2512"};
  std::vector<std::string> words = words_of_name(name.substr(slash + 1));
  while (words.size() > 1 && is_one_of(kVariants, words.back())) words.pop_back();
  if (words.size() > 1 && words.front() == "meta") words.erase(words.begin());
  return joined(words);
}

}  // namespace ns_dist
