#include "ns_dist/result.h"

#include "ns_dist/internal/printable.h"

namespace ns_dist {
namespace {

constexpr std::size_t kMostMistakes = 100;

// Errors repeat what they were given.
std::string shown(std::string_view part) {
  constexpr std::size_t kBegin = 1200, kEnd = 400;
  if (part.size() <= kBegin + kEnd) return printable(part);
  return printable(part.substr(0, kBegin)) + " ... " + printable(part.substr(part.size() - kEnd));
}

void append(std::string& text, const Error& error, std::size_t& mistakes) {
  if (mistakes++ >= kMostMistakes) return;
  if (!text.empty()) text += '\n';
  if (!error.where.empty()) text += shown(error.where) + ": ";
  text += shown(error.message);
  if (!error.expected.empty()) text += "; expected " + shown(error.expected);
  if (!error.hint.empty()) text += "; " + shown(error.hint);
  for (const Error& other : error.also) append(text, other, mistakes);
}

}  // namespace

std::string to_text(const Error& error) {
  std::string text;
  std::size_t mistakes = 0;
  append(text, error, mistakes);
  if (mistakes > kMostMistakes) text += "\nand " + std::to_string(mistakes - kMostMistakes) + " more mistakes";
  return text;
}

Error join(std::vector<Error> errors) {
  NS_EXPECTS(!errors.empty());
  Error first = std::move(errors.front());
  for (std::size_t i = 1; i < errors.size(); ++i) first.also.push_back(std::move(errors[i]));
  return first;
}

namespace detail {

void broken_contract(const char* expression, const char* file, int line) {
  throw BrokenContract(std::string(expression) + " is false at " + file + ":" + std::to_string(line));
}

}  // namespace detail
}  // namespace ns_dist
