#include "ns_dist/pipeline_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace ns_dist {
namespace {

constexpr std::size_t kMostLetters = 1'000'000;
constexpr std::size_t kDeepest = 16;  // parentheses in parentheses

tl::unexpected<Error> wrong(std::string message, std::string hint) {
  return fail({ErrorCode::kInvalidInput, std::move(message), "plan/pipeline_layout",
               "as in \"Et*3|(tt|)*29m|L\": E, layers t, further predictions m and L, positions divided by |",
               std::move(hint)});
}

// The letters of a text without its repetitions.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<std::string> all() {
    NS_TRY(std::string letters, sequence(0));
    if (at_ < text_.size()) return wrong("a \")\" without its \"(\"", "leave it out");
    return letters;
  }

 private:
  Result<std::string> sequence(std::size_t depth) {
    std::string letters;
    while (at_ < text_.size() && text_[at_] != ')') {
      const char next = text_[at_++];
      if (next == ',' || next == ' ') continue;  // commas divide what they like (Megatron-Core)
      std::string one(1, next);
      if (next == '(') {
        if (depth == kDeepest) return wrong("parentheses within parentheses, too deep", "write fewer");
        NS_TRY(one, sequence(depth + 1));
        if (at_ == text_.size()) return wrong("a \"(\" without its \")\"", "add it");
        ++at_;
      } else if (std::string_view("EtmL|").find(next) == std::string_view::npos) {
        return wrong(fmt::format("\"{}\" is no part of a model", next), "write E, t, m, L and | alone");
      }
      NS_TRY(const std::size_t times, repeats());
      // Each part is written once for each parenthesis around it; so is what is then repeated 0 times.
      written_ += one.size() * std::max<std::size_t>(1, times);
      if ((times > 0 && one.size() > (kMostLetters - letters.size()) / times) || written_ > kDeepest * kMostLetters) {
        return wrong("more than a million parts", "repeat less");
      }
      for (std::size_t i = 0; i < times; ++i) letters += one;
    }
    return letters;
  }

  Result<std::size_t> repeats() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    std::size_t times = 0;
    const char* const first = text_.data() + at_ + 1;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), times);
    if (error == std::errc::result_out_of_range || times > kMostLetters) {
      return wrong("more than a million parts", "repeat less");
    }
    if (error != std::errc()) {
      return wrong("no number of repetitions behind a \"*\"", "write, for example, t*3");
    }
    at_ = static_cast<std::size_t>(end - text_.data());
    return times;
  }

  std::string_view text_;
  std::size_t at_ = 0, written_ = 0;
};

std::string repeated(std::string_view one, std::size_t times) {
  if (times == 0) return {};
  if (times == 1) return std::string(one);
  const bool single = one.size() == 1;
  const std::string written = single ? fmt::format("{}*{}", one, times) : fmt::format("({})*{}", one, times);
  std::string plain;
  for (std::size_t i = 0; i < times && plain.size() <= written.size(); ++i) plain += one;
  return plain.size() <= written.size() ? plain : written;
}

}  // namespace

Result<std::vector<PositionParts>> read_pipeline_layout(std::string_view text) {
  const Result<std::string> all = Reader(text).all();
  if (!all) return fail(all.error());
  const std::string_view letters = *all;
  if (!letters.starts_with('E') || letters.find('E', 1) != letters.npos) {
    return wrong("the embedding is not the first part, and only that", "write one E, at the beginning");
  }
  if (!letters.ends_with('L') || letters.find('L') + 1 != letters.size()) {
    return wrong("the loss is not the last part, and only that", "write one L, at the end");
  }
  std::vector<PositionParts> positions(1);
  std::optional<std::size_t> predicting;
  for (const char letter : letters) {
    if (letter == '|') positions.emplace_back();
    if (letter == 't') {
      if (predicting) return wrong("a layer behind one for multi-token prediction", "write all t before the first m");
      ++positions.back().layers;
    }
    if (letter != 'm') continue;
    const std::size_t here = positions.size() - 1;
    if (predicting.value_or(here) != here) {
      return wrong("layers for multi-token prediction at several positions", "write all m into one position");
    }
    predicting = here;
    ++positions.back().predictions;
  }
  return positions;
}

std::string pipeline_layout_text(std::span<const PositionParts> positions) {
  std::string text = "E";
  for (std::size_t i = 0; i < positions.size();) {
    const PositionParts& here = positions[i];
    const std::string parts = repeated("t", static_cast<std::size_t>(here.layers)) +
                              repeated("m", static_cast<std::size_t>(here.predictions));
    std::size_t alike = 1;
    while (i + alike + 1 < positions.size() && positions[i + alike] == here) ++alike;
    // The last one ends with the loss, and the first one begins with the embedding, which no repetition holds.
    if (i + 1 == positions.size()) {
      text += parts + "L";
    } else if (i == 0) {
      text += parts + "|";
      alike = 1;
    } else {
      text += repeated(parts + "|", alike);
    }
    i += alike;
  }
  return text;
}

}  // namespace ns_dist
