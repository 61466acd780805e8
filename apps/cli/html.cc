#include "html.h"

#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/result.h"

namespace ns_dist::cli {

std::string html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::string json_block(std::string json) {
  // "<" stands in strings only, where JSON may write it as an escape.
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

std::string typeset(std::string_view text) {
  std::string result = html(text);
  for (std::size_t at = result.find(" x "); at != std::string::npos; at = result.find(" x ", at)) {
    result.replace(at, 3, " × ");
  }
  return result;
}

std::string section(std::string_view heading, const std::string& body) {
  return body.empty() ? "" : fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", typeset(heading), body);
}

std::string folded(std::string_view heading, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<details>\n<summary>{}</summary>\n{}</details>\n", typeset(heading), body);
}

std::string as_printed(const std::string& text) {
  if (text.empty()) return "";
  std::string lines;
  for (std::size_t at = text.front() == '\n' ? 1 : 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    lines += html(text.substr(at, end - at)) + "\n";
  }
  return "<pre>" + lines + "</pre>\n";
}

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, value);
}

std::string table(std::string_view head, const std::string& rows) {
  return fmt::format("<div class=\"scroll\"><table>\n<tr>{}</tr>\n{}</table></div>\n", head, rows);
}

std::string fill(std::string_view page, std::span<const std::pair<std::string_view, std::string>> parts) {
  std::string result;
  for (std::size_t open = page.find("{{"); open != std::string_view::npos; open = page.find("{{")) {
    const std::size_t close = page.find("}}", open);
    const std::string_view name = page.substr(open + 2, close - open - 2);
    const auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& one) { return one.first == name; });
    NS_EXPECTS(close != std::string_view::npos && part != parts.end());
    result += page.substr(0, open);
    result += part->second;
    page.remove_prefix(close + 2);
  }
  return result += page;
}

}  // namespace ns_dist::cli
