// Texts from files and flags, as a terminal may show them and as a shell reads them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ns_dist {

// `text` with control characters, marks that turn the direction of writing, and bytes that are no UTF-8 written as
// "\x1b": what a terminal would obey.
std::string printable(std::string_view text);

// The bytes of the UTF-8 character at the beginning of `text`; 0 where the text begins with none (RFC 3629, section 4).
// Contract: `text` is not empty.
std::size_t utf8_length(std::string_view text);

// Whether `text` is made of such characters alone.
bool is_utf8(std::string_view text);

// In single quotes where a POSIX shell would read it otherwise. Bytes that printable() escapes are escaped for bash,
// zsh and ksh, as in $'a\x1b'.
std::string shell_word(std::string_view text);

}  // namespace ns_dist
