// The text of each enumerator: its only spelling, for flags, files, reports and errors alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace ns_dist {

// Specialized beside each enum, in the order of the enumerators, whose values are 0, 1, 2, ...
template <class Enum>
inline constexpr auto kEnumeratorNames = nullptr;

template <class Enum>
constexpr std::span<const std::string_view> names_of() {
  static_assert(std::is_enum_v<Enum>);
  return kEnumeratorNames<Enum>;
}

template <class Enum>
requires(std::is_enum_v<Enum> &&
         !std::is_null_pointer_v<std::remove_const_t<decltype(kEnumeratorNames<Enum>)>>) constexpr std::string_view
    name_of(Enum value) {
  return names_of<Enum>()[static_cast<std::size_t>(value)];
}

template <class Enum>
constexpr std::optional<Enum> enumerator_from_name(std::string_view name) {
  const std::span<const std::string_view> names = names_of<Enum>();
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? std::nullopt : std::optional(static_cast<Enum>(found - names.begin()));
}

}  // namespace ns_dist
