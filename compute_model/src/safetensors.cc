#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are copied as they lie in the file");

template <class T>
constexpr std::string_view kTypeName = "";
template <>
constexpr std::string_view kTypeName<float> = "F32";
template <>
constexpr std::string_view kTypeName<std::uint32_t> = "U32";

std::size_t size_of_type(std::string_view dtype) {
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return 0;
}

tl::unexpected<Error> bad_header(const std::string& where, std::string message) {
  Error error;
  error.message = std::move(message);
  error.where = where;
  error.expected = "a safetensors file";
  error.hint = "write it anew with ns-dist fit";
  return fail(error);
}

}  // namespace

Result<Safetensors> Safetensors::parse(std::string_view bytes, const std::string& where) {
  constexpr std::size_t kLengthSize = 8, kLargestHeader = 100'000'000;  // the format's own limit
  if (bytes.size() < kLengthSize) return bad_header(where, "the file is shorter than its header length");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthSize);
  if (length > kLargestHeader || length > bytes.size() - kLengthSize) {
    return bad_header(where, "the header length is " + std::to_string(length) + " bytes, more than the file has");
  }
  const std::string_view text = bytes.substr(kLengthSize, length), data = bytes.substr(kLengthSize + length);
  NS_TRY(const auto header, parse_json(text, where));
  if (!header.is_object()) return bad_header(where, "the header is not a JSON object");

  Safetensors file;
  file.where_ = where;
  struct Range {
    std::uint64_t begin, end;
  };
  std::vector<Range> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (!entry.is_object()) return bad_header(where, "header entry \"" + shortened(name) + "\" is not an object");
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return bad_header(where, "metadata \"" + shortened(key) + "\" is not a text");
        file.metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
    if (dtype == entry.end() || !dtype->is_string() || shape == entry.end() || !shape->is_array() ||
        offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
        !(*offsets)[1].is_number_unsigned()) {
      return bad_header(where, "tensor \"" + shortened(name) + "\" lacks a usable dtype, shape or data_offsets");
    }
    const std::size_t element = size_of_type(dtype->get_ref<const std::string&>());
    if (element == 0)
      return bad_header(where, "tensor \"" + shortened(name) + "\" has the unknown type " + json_excerpt(*dtype));
    std::uint64_t count = 1;
    for (const auto& extent : *shape) {
      if (!extent.is_number_unsigned())
        return bad_header(where, "tensor \"" + shortened(name) + "\" has a shape that is no size");
      const auto size = extent.get<std::uint64_t>();
      if (size != 0 && count > data.size() / size)
        return bad_header(where, "tensor \"" + shortened(name) + "\" is larger than the file");
      count *= size;
    }
    const auto begin = (*offsets)[0].get<std::uint64_t>(), end = (*offsets)[1].get<std::uint64_t>();
    if (begin > end || end > data.size())
      return bad_header(where, "tensor \"" + shortened(name) + "\" leaves the file");
    if (end - begin != count * element)
      return bad_header(where, "tensor \"" + shortened(name) + "\" does not fill its shape");
    Tensor& tensor = file.tensors_[name];
    tensor.dtype = dtype->get<std::string>();
    tensor.data = data.substr(begin, end - begin);
    if (begin < end) ranges.push_back({begin, end});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) return bad_header(where, "two tensors overlap");
  }
  return file;
}

std::string Safetensors::bytes() const {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata_;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors_) {
    const std::uint64_t end = offset + tensor.data.size();
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", {tensor.data.size() / size_of_type(tensor.dtype)}},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data start aligned
  const std::uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  out += text;
  for (const auto& [name, tensor] : tensors_) out += tensor.data;
  return out;
}

template <class T>
void Safetensors::put(const std::string& name, std::span<const T> values) {
  Tensor& tensor = tensors_[name];
  tensor.dtype = kTypeName<T>;
  tensor.data = owned_.emplace_back(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

template <class T>
Result<std::span<const T>> Safetensors::view(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return bad_header(where_, "there is no tensor \"" + name + "\"");
  const Tensor& tensor = found->second;
  if (tensor.dtype != kTypeName<T>) {
    return bad_header(where_,
                      "tensor \"" + shortened(name) + "\" is " + tensor.dtype + ", not " + std::string(kTypeName<T>));
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % alignof(T) != 0) {
    return bad_header(where_, "tensor \"" + shortened(name) + "\" is not aligned");
  }
  return std::span<const T>(reinterpret_cast<const T*>(tensor.data.data()), tensor.data.size() / sizeof(T));
}

template <class T>
Result<std::vector<T>> Safetensors::get(const std::string& name) const {
  NS_TRY(const std::span<const T> values, view<T>(name));
  return std::vector<T>(values.begin(), values.end());
}

template void Safetensors::put(const std::string&, std::span<const float>);
template void Safetensors::put(const std::string&, std::span<const std::uint32_t>);
template Result<std::vector<float>> Safetensors::get(const std::string&) const;
template Result<std::vector<std::uint32_t>> Safetensors::get(const std::string&) const;
template Result<std::span<const float>> Safetensors::view(const std::string&) const;
template Result<std::span<const std::uint32_t>> Safetensors::view(const std::string&) const;

}  // namespace ns_dist
