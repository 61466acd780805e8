// The catalog of GPUs, fabrics, clusters, models, frameworks and published runs: configs/, compiled in, and files of
// the user's own.
//
// A reference is an id, an alias or a path to a JSON file. Ids are looked for in $NS_DIST_PATH, then in
// <prefix>/share/ns_dist beside the executable, then in the copy compiled in. Reading is strict: an unknown key or
// name is an error that names the nearest known one, and all mistakes of a file are reported at once.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/cluster.h"
#include "ns_dist/framework.h"
#include "ns_dist/model.h"
#include "ns_dist/published_run.h"
#include "ns_dist/result.h"

namespace ns_dist {

enum class CatalogKind { kGpu, kFabric, kCluster, kModel, kFramework, kRuns };

struct CatalogEntry {
  std::string id, name;
  std::vector<std::string> aliases;
};

// A file that was read, for the provenance in reports.
struct InputFile {
  std::string path;  // "configs/gpus/h100-sxm-80gb.json" or the user's file
  std::string hash;  // FNV-1a 64 of its bytes, hexadecimal
  friend bool operator==(const InputFile&, const InputFile&) = default;
};

class Catalog {
 public:
  // $NS_DIST_PATH, the installed share folder, the compiled-in copy.
  static Catalog standard();
  // The compiled-in copy alone.
  static Catalog built_in() { return {}; }

  // Each errs when the reference is unknown (naming the nearest), or its file has mistakes (all of them).
  // Also NeuSight's device JSON, and a file that tells in "like" which GPU has all its other values. Errors also: such
  // a GPU is like itself.
  Result<Gpu> gpu(std::string_view reference) const;
  Result<Fabric> fabric(std::string_view reference) const;
  Result<Cluster> cluster(std::string_view reference) const;
  // The machine that a GPU is usually found in. Errors: its file names none, or one that is unknown; `file` names it in
  // them.
  Result<Cluster> usual_machine(const Gpu& gpu, std::string_view file = "") const;
  // The machine that a row of a table was measured on: `system`, with `gpu` where one is named, too. A system that the
  // catalog does not know is the usual machine of its GPU under that name: corrections may know it. `system` or `gpu`
  // may be empty. Errors: an unknown GPU; without a GPU, an unknown system.
  Result<Cluster> measured_machine(std::string_view gpu, std::string_view system) const;
  Result<Model> model(std::string_view reference) const;  // also a Hugging Face config.json, or its folder
  // With the entries of the frameworks that it is like. Errors also: such a framework is like itself.
  Result<Framework> framework(std::string_view reference) const;
  Result<PublishedRuns> runs(std::string_view reference) const;

  // The file itself: what a new one may begin with. Errors: the reference is unknown.
  Result<std::string> text(CatalogKind kind, std::string_view reference) const;

  // All entries by id, in alphabetical order. A file that is not called as its id is listed by the file's name, and the
  // id is another name of it.
  std::vector<CatalogEntry> list(CatalogKind kind) const;

  // Whether the compiled-in copy is the only source, because no other folder exists.
  bool is_built_in() const;

  // Everything this catalog has read so far, by path.
  std::vector<InputFile> inputs() const;

 private:
  struct Source {
    std::string path, text;
  };
  Result<Source> find(CatalogKind kind, std::string_view reference) const;
  // What the last of the files at `paths` is like, whose path is appended. Errors: unknown, or among them already.
  Result<Source> find_like(CatalogKind kind, const std::string& like, std::vector<std::string>& paths) const;

  std::vector<std::filesystem::path> folders_;
  // What was read; threads may look up at the same time. Copies share it.
  struct Reads {
    std::mutex lock;
    std::map<std::string, std::string> hashes;  // by path
  };
  std::shared_ptr<Reads> reads_ = std::make_shared<Reads>();
};

// Readers of a JSON text; `where` is its file name for errors. They read no other file.
Result<Gpu> read_gpu(std::string_view json, const std::string& where);
Result<Model> read_model(std::string_view json, const std::string& where);
Result<Fabric> read_fabric(std::string_view json, const std::string& where);
Result<Framework> read_framework(std::string_view json, const std::string& where);
Result<PublishedRuns> read_runs(std::string_view json, const std::string& where);

// The candidate nearest to `name` by edit distance, or empty when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// The hint of an error that gives what nearest_name found; `otherwise` when it found nothing.
std::string did_you_mean(std::string_view near, std::string otherwise = "");

}  // namespace ns_dist
