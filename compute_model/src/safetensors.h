// The safetensors format: 8 bytes of header length, a JSON header, raw little-endian data. Nothing in a file can run.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

class Safetensors {
 public:
  Safetensors() = default;
  Safetensors(Safetensors&&) = default;  // a copy would refer to the data of the original
  Safetensors& operator=(Safetensors&&) = default;

  // Refers to `bytes`, which must outlive it. Errors: too short, a header that is not JSON or not as the format wants
  // it, data that overlap or leave the file.
  static Result<Safetensors> parse(std::string_view bytes, const std::string& where);
  static Result<Safetensors> parse(std::string&& bytes, const std::string& where) = delete;  // would not outlive it
  std::string bytes() const;

  std::map<std::string, std::string>& metadata() { return metadata_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  template <class T>
  void put(const std::string& name, std::span<const T> values);
  // Errors: no such tensor, another type.
  template <class T>
  Result<std::vector<T>> get(const std::string& name) const;
  // The values in place. Errors: as get; data that do not lie on a multiple of their size.
  template <class T>
  Result<std::span<const T>> view(const std::string& name) const;

 private:
  struct Tensor {
    std::string dtype;
    std::string_view data;
  };
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Tensor> tensors_;
  std::deque<std::string> owned_;  // data of put()
  std::string where_;
};

}  // namespace ns_dist
