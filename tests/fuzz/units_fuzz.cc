// Text with units: any text is either refused with a message or read; what was read is written so that it reads back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ns_dist/units.h"

namespace {

template <class Q>
void try_as(std::string_view text) {
  const auto quantity = ns_dist::parse_quantity<Q>(text);
  if (!quantity) {
    NS_EXPECTS(!quantity.error().message.empty());
    return;
  }
  const auto again = ns_dist::parse_quantity<Q>(ns_dist::to_text(*quantity));
  NS_EXPECTS(again && *again == *quantity);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_as<ns_dist::Seconds>(text);
  try_as<ns_dist::Bytes>(text);
  try_as<ns_dist::BytesPerSecond>(text);
  try_as<ns_dist::FlopsPerSecond>(text);
  try_as<ns_dist::Hertz>(text);
  try_as<ns_dist::Watts>(text);
  return 0;
}
