#include "ns_dist/result.h"

#include <cstdio>
#include <cstdlib>

namespace ns_dist {
namespace {

void append(std::string& text, const Error& error) {
  if (!error.where.empty()) text += error.where + ": ";
  text += error.message;
  if (!error.expected.empty()) text += "; expected " + error.expected;
  if (!error.hint.empty()) text += "; " + error.hint;
  for (const Error& other : error.also) {
    text += '\n';
    append(text, other);
  }
}

}  // namespace

std::string to_text(const Error& error) {
  std::string text;
  append(text, error);
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
  std::fprintf(stderr, "ns-dist: internal error: %s is false at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace detail
}  // namespace ns_dist
