#pragma once

namespace ns_dist {

// A visitor of one function for each alternative of a variant.
template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace ns_dist
