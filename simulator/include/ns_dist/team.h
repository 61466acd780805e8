// Processes that share the work of a search, on one machine or on several.
//
// All members do the same in the same order, and only the numbers that `next` hands out are divided among them: so each
// knows every result, and none has to tell the others what to do next.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ns_dist {

class Team {
 public:
  virtual ~Team() = default;
  virtual int member() const = 0;  // 0 to size() - 1
  virtual int size() const = 0;
  // The first of `count` numbers in a row that no member has been given since the last exchange, beginning at 0. Any
  // thread may ask.
  virtual std::size_t next(std::size_t count) = 0;
  // What each member gives, by member. All wait for each other; no thread asks for numbers meanwhile.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;
};

}  // namespace ns_dist
