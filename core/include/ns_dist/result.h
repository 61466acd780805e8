// Results and errors. What the user caused is a value, Result<T>; what we caused is a bug, NS_EXPECTS.
//
//   Result<Gpu> gpu = catalog.gpu("h1000");      // error: unknown GPU "h1000" ... did you mean "h100"?
//   NS_TRY(const Gpu gpu, catalog.gpu(name));    // leaves the enclosing function with the error
#pragma once

#include <stdexcept>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace ns_dist {

enum class ErrorCode {
  kInvalidInput,  // a value, name, key or file that cannot be used as it is
  kNotFound,      // a name or a path that does not exist
  kInfeasible,    // a plan that cannot be built on this model or cluster
  kUsage,         // a command line that cannot be understood
};

// `where` is a file and a JSON pointer ("gpu.json#/memory/bandwidth"), a flag ("--tp") or a line ("rows.csv:12").
struct Error {
  ErrorCode code = ErrorCode::kInvalidInput;
  std::string message = {};      // what is wrong
  std::string where = {};        // the place; empty when there is none
  std::string expected = {};     // what was expected there; may be empty
  std::string hint = {};         // what to write instead; may be empty
  std::vector<Error> also = {};  // further mistakes of the same input, in the order of the input
};

// One line for each mistake: "where: message; expected ...; hint".
std::string to_text(const Error& error);

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// All of `errors` (at least one) as one: the first, with the rest in `also`.
Error join(std::vector<Error> errors);

// What is thrown where one of our own contracts does not hold: a bug of ours.
class BrokenContract : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void broken_contract(const char* expression, const char* file, int line);
}  // namespace detail

}  // namespace ns_dist

// A contract between our own functions: checked in every build type, throws BrokenContract. Never reachable from input.
#define NS_EXPECTS(condition) \
  ((condition) ? static_cast<void>(0) : ::ns_dist::detail::broken_contract(#condition, __FILE__, __LINE__))

#define NS_CONCAT_INNER(a, b) a##b
#define NS_CONCAT(a, b) NS_CONCAT_INNER(a, b)
#define NS_TRY_INNER(result, declaration, ...)                    \
  auto result = (__VA_ARGS__);                                    \
  if (!result) return ::ns_dist::fail(std::move(result).error()); \
  declaration = *std::move(result)
// Declares a variable from a Result, or returns the Result's error from the enclosing function.
#define NS_TRY(declaration, ...) NS_TRY_INNER(NS_CONCAT(ns_result_, __LINE__), declaration, __VA_ARGS__)

// Leaves the enclosing function with the error of a Result<void>.
#define NS_TRY_VOID_INNER(result, ...) \
  if (auto result = (__VA_ARGS__); !result) return ::ns_dist::fail(std::move(result).error())
#define NS_TRY_VOID(...) NS_TRY_VOID_INNER(NS_CONCAT(ns_result_, __LINE__), __VA_ARGS__)
