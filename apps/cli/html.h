// Text that becomes part of a page.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ns_dist::cli {

// Shown as it is: no character of it is read as markup, in text or in an attribute.
std::string html(std::string_view text);

// JSON for a <script> block that no text in it can end.
std::string json_block(std::string json);

// "1,024 x H100" with a multiplication sign: spaces around it only.
std::string typeset(std::string_view text);

// A heading and what stands below it. No section where there is nothing to say.
std::string section(std::string_view heading, const std::string& body);

// What is seen when a reader opens it, and on paper. Nothing where there is nothing to say.
std::string folded(std::string_view heading, const std::string& body);

// A part of an answer as in a terminal.
std::string as_printed(const std::string& text);

// A name and its value, in a <dl>.
std::string row(std::string_view name, const std::string& value);

// A table, which scrolls where the screen is narrow: the cells of its first line, and the other lines as they are.
std::string table(std::string_view head, const std::string& rows);

// `page` with each {{name}} replaced by its part. What is filled in is not read again.
std::string fill(std::string_view page, std::span<const std::pair<std::string_view, std::string>> parts);

}  // namespace ns_dist::cli
