#include "ns_dist/catalog.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>

#include "catalog_names.h"
#include "embedded_files.h"
#include "ns_dist/files.h"
#include "ns_dist/hash.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/split_at.h"
#include "readers.h"

namespace ns_dist {
namespace {

bool is_called(const CatalogEntry& entry, std::string_view folded) {
  return folded_name(entry.id) == folded || folded_name(entry.name) == folded ||
         std::any_of(entry.aliases.begin(), entry.aliases.end(),
                     [&](const std::string& alias) { return folded_name(alias) == folded; });
}

struct KindName {
  std::string_view folder, noun;
  std::string_view expected;  // what a name of it may be, for errors
};

KindName name_of(CatalogKind kind) {
  switch (kind) {
    case CatalogKind::kGpu:
      return {"gpus", "GPU", "an id of `ns-dist list gpus` or a JSON file"};
    case CatalogKind::kFabric:
      return {"fabrics", "fabric", "an id of `ns-dist list fabrics` or a JSON file"};
    case CatalogKind::kCluster:
      return {"clusters", "cluster", "an id of `ns-dist list clusters` or a JSON file"};
    case CatalogKind::kFramework:
      return {"frameworks", "framework", "an id of `ns-dist list frameworks` or a JSON file"};
    case CatalogKind::kRuns:
      return {"runs", "publication", "the name of a file in configs/runs, or a JSON file"};
    case CatalogKind::kModel:
      break;
  }
  return {"models", "model", "an id of `ns-dist list models` or a JSON file, or a folder with config.json"};
}

// Config files are a few kilobytes; anything far beyond was given by mistake.
constexpr std::size_t kLargestFile = 16 * kMebibyte;

// Of the installation that this code belongs to: the program's, or that of a shared library that another program loads.
std::filesystem::path share_folder() {
  std::error_code status;
  Dl_info about{};
  link_map* loaded = nullptr;
  static const char here = 0;
  const bool found = dladdr1(&here, &about, reinterpret_cast<void**>(&loaded), RTLD_DL_LINKMAP) != 0;
  const bool is_library = found && loaded != nullptr && loaded->l_name != nullptr && *loaded->l_name != '\0';
  const std::filesystem::path self = is_library ? std::filesystem::canonical(loaded->l_name, status)
                                                : std::filesystem::read_symlink("/proc/self/exe", status);
  if (status) return {};
  const auto below = [](const std::filesystem::path& prefix) { return prefix / "share" / "ns_dist"; };
  const std::filesystem::path prefix = self.parent_path().parent_path();
  // A library may lie in lib/x86_64-linux-gnu, a level deeper.
  const bool deeper = is_library && !std::filesystem::is_directory(below(prefix), status) &&
                      std::filesystem::is_directory(below(prefix.parent_path()), status);
  return below(deeper ? prefix.parent_path() : prefix);
}

// What a lookup by alias and `list` need of a file, without a check of the rest of it.
CatalogEntry entry_of(std::string_view text, const std::string& where) {
  CatalogEntry entry;
  const auto root = parse_json(text, where);
  if (!root || !root->is_object()) return entry;
  std::vector<Error> ignored;
  JsonReader reader(*root, where, ignored);
  entry.id = reader.text("id");
  entry.name = reader.text("name", Presence::kOptional);
  entry.aliases = reader.texts(root->contains("named_as") ? "named_as" : "aliases");
  return entry;
}

// The same of a file whose form is known, without reading it to its end: id, name and aliases (of a framework, the
// words by which it is named) are at its beginning.
class EntryFinder final : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  CatalogEntry entry;

  bool key(string_t& text) override {
    if (depth_ == 1) key_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 1 && key_ == "id") entry.id = text;
    if (depth_ == 1 && key_ == "name") entry.name = text;
    if (depth_ == 2 && has_aliases()) entry.aliases.push_back(text);
    return true;
  }
  bool start_object(std::size_t) override { return ++depth_ == 1 || entry.id.empty() || entry.name.empty(); }
  bool end_object() override { return --depth_ > 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  // Aliases come last.
  bool end_array() override { return --depth_ != 1 || !has_aliases(); }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool has_aliases() const { return key_ == "aliases" || key_ == "named_as"; }

  int depth_ = 0;
  std::string key_;
};

CatalogEntry embedded_entry_of(std::string_view text) {
  EntryFinder finder;
  nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &finder);
  return std::move(finder.entry);
}

// Appends the entries of `base` whose field `entries` does not have.
template <class Entries>
void add_missing(Entries& entries, const Entries& base) {
  const auto own_end = static_cast<std::ptrdiff_t>(entries.size());
  for (const auto& entry : base) {
    const auto same = [&](const auto& own) { return own.field == entry.field; };
    if (std::none_of(entries.begin(), entries.begin() + own_end, same)) entries.push_back(entry);
  }
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  // Optimal string alignment: insertions, deletions, substitutions and swaps of neighbors. Near means that at most a
  // third of the longer name is wrong, or that one contains the other. A name that begins with `name` wins over all
  // that do not, and a common beginning over as near a rival.
  constexpr std::size_t kLongestName = 200, kFar = 4 * kLongestName;
  if (name.size() > kLongestName) return "";
  std::string best;
  std::size_t best_score = std::string::npos;
  const std::string wanted = lower_case(name);
  for (const std::string& candidate : candidates) {
    const std::string known = lower_case(candidate);
    std::vector<std::vector<std::size_t>> rows(wanted.size() + 1, std::vector<std::size_t>(known.size() + 1));
    for (std::size_t i = 0; i <= wanted.size(); ++i) {
      for (std::size_t j = 0; j <= known.size(); ++j) {
        if (i == 0 || j == 0) {
          rows[i][j] = i + j;
          continue;
        }
        const bool same = wanted[i - 1] == known[j - 1];
        rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && wanted[i - 1] == known[j - 2] && wanted[i - 2] == known[j - 1]) {
          rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
        }
      }
    }
    std::size_t distance = rows[wanted.size()][known.size()];
    const std::size_t longest = std::max(wanted.size(), known.size()), shortest = std::min(wanted.size(), known.size());
    const bool contained =
        shortest >= 3 && (known.find(wanted) != std::string::npos || wanted.find(known) != std::string::npos);
    if (distance * 3 > longest && !contained) continue;
    const bool continues = contained && known.starts_with(wanted);
    if (contained && !continues) distance = std::min(distance, longest / 3);
    const bool same_beginning = shortest > 0 && known.front() == wanted.front();
    const std::size_t score = 2 * distance + (same_beginning ? 0 : 1) + (continues ? 0 : kFar);
    if (score < best_score) {
      best_score = score;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view near, std::string otherwise) {
  return near.empty() ? std::move(otherwise) : fmt::format("did you mean \"{}\"?", near);
}

Catalog Catalog::standard() {
  Catalog catalog;
  if (const char* path = std::getenv("NS_DIST_PATH"); path != nullptr) {
    for (const std::string_view folder : split_at(path, ":")) {
      if (!folder.empty()) catalog.folders_.emplace_back(folder);
    }
  }
  catalog.folders_.push_back(share_folder());
  return catalog;
}

std::vector<CatalogEntry> Catalog::list(CatalogKind kind) const {
  std::map<std::string, CatalogEntry> entries;
  const std::string folder(name_of(kind).folder);
  const auto take = [&](CatalogEntry entry) { entries.try_emplace(entry.id, std::move(entry)); };
  for (const std::filesystem::path& root : folders_) {
    std::error_code status;
    std::vector<std::filesystem::path> files;
    for (const auto& item : std::filesystem::directory_iterator(root / folder, status)) {
      if (item.path().extension() == ".json") files.push_back(item.path());
    }
    std::sort(files.begin(), files.end());
    for (const std::filesystem::path& file : files) {
      const auto text = read_text(file, kLargestFile);
      CatalogEntry entry = text ? entry_of(*text, file.string()) : CatalogEntry();
      if (entry.id.empty()) continue;
      if (entry.id != file.stem()) entry.aliases.push_back(std::exchange(entry.id, file.stem()));
      take(std::move(entry));
    }
  }
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.path.starts_with(folder + "/")) take(embedded_entry_of(file.content));
  }
  std::vector<CatalogEntry> sorted;
  for (auto& [id, entry] : entries) sorted.push_back(std::move(entry));
  return sorted;
}

Result<Catalog::Source> Catalog::find(CatalogKind kind, std::string_view reference) const {
  const KindName kind_name = name_of(kind);
  const auto remember = [&](std::string path, std::string text) {
    std::string hash = hash_text(text);
    const std::scoped_lock guard(reads_->lock);
    reads_->hashes[path] = std::move(hash);
    return Source{std::move(path), std::move(text)};
  };
  if (reference.empty()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("no {} is named", kind_name.noun), ""});
  }
  if (names_file(reference) || reference == "-") {
    std::filesystem::path path(reference);
    std::error_code status;
    // A model as it is downloaded: its configuration lies beside its weights.
    if (kind == CatalogKind::kModel && std::filesystem::is_directory(path, status)) {
      if (!std::filesystem::exists(path / "config.json", status)) {
        const bool adapter = std::filesystem::exists(path / "adapter_config.json", status);
        return fail({ErrorCode::kInvalidInput, fmt::format("the folder \"{}\" has no config.json", path.string()), "",
                     std::string(kind_name.expected), adapter ? std::string(kOfAdapter) : ""});
      }
      path /= "config.json";
    }
    if (const std::string hub = kind == CatalogKind::kModel ? folded_hub_name(reference) : "";
        !hub.empty() && !std::filesystem::exists(path, status)) {
      for (const CatalogEntry& entry : list(kind)) {
        if (is_called(entry, hub)) return find(kind, entry.id);
      }
      return fail(
          {ErrorCode::kNotFound, fmt::format("\"{}\" is neither a file nor a model of the catalog", reference), "",
           std::string(kind_name.expected),
           fmt::format("of a model of the Hugging Face Hub, download huggingface.co/{}/blob/main/config.json and "
                       "give its path",
                       reference)});
    }
    // Without a place: that of a file that is not there is the flag or the key that names it.
    NS_TRY(std::string text, read_text(path, kLargestFile, "", kind_name.expected));
    return remember(path.string(), std::move(text));
  }

  const auto by_id = [&](const std::string& id) -> Result<Source> {
    for (const std::filesystem::path& root : folders_) {
      const std::filesystem::path path = root / kind_name.folder / (id + ".json");
      std::error_code status;
      if (!std::filesystem::exists(path, status)) continue;
      NS_TRY(std::string text, read_text(path, kLargestFile));
      return remember(path.string(), std::move(text));
    }
    const std::string path = fmt::format("{}/{}.json", kind_name.folder, id);
    for (const EmbeddedFile& file : embedded_files()) {
      if (file.path == path) return remember("configs/" + path, std::string(file.content));
    }
    return fail({ErrorCode::kNotFound, "", ""});
  };
  const std::string wanted = lower_case(reference);
  if (auto found = by_id(wanted); found || !found.error().message.empty()) return found;

  std::vector<std::string> known;
  const std::string folded = folded_name(reference);
  for (const CatalogEntry& entry : list(kind)) {
    if (!folded.empty() && is_called(entry, folded)) return by_id(entry.id);
    known.push_back(entry.id);
    known.insert(known.end(), entry.aliases.begin(), entry.aliases.end());
  }
  if (kind == CatalogKind::kModel) {
    std::error_code status;
    const bool is_folder = std::filesystem::is_directory(reference, status);
    if (auto folder = find(kind, std::string(reference) + "/"); folder || is_folder) return folder;
  }
  const std::string near = nearest_name(folded_name(reference, "-"), known);
  return fail({ErrorCode::kNotFound, fmt::format("unknown {} \"{}\"", kind_name.noun, reference), "",
               std::string(kind_name.expected), did_you_mean(near)});
}

Result<Catalog::Source> Catalog::find_like(CatalogKind kind, const std::string& like,
                                           std::vector<std::string>& paths) const {
  const auto wrong = [&](Error error) {
    if (error.where.empty()) error.where = paths.back() + "#/like";
    return fail(std::move(error));
  };
  auto found = find(kind, like);
  if (!found) return wrong(std::move(found).error());
  if (std::find(paths.begin(), paths.end(), found->path) != paths.end()) {
    const std::string_view noun = name_of(kind).noun;
    return wrong({ErrorCode::kInvalidInput, fmt::format("the {} \"{}\" is like itself", noun, like), "",
                  fmt::format("{}s of which the last one is like no other", noun)});
  }
  paths.push_back(found->path);
  return found;
}

Result<std::string> Catalog::text(CatalogKind kind, std::string_view reference) const {
  NS_TRY(Source source, find(kind, reference));
  return std::move(source.text);
}

Result<Gpu> Catalog::gpu(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kGpu, reference));
  NS_TRY(nlohmann::ordered_json root, parse_json(source.text, source.path));
  std::vector<nlohmann::ordered_json> chain;  // each like the next one
  std::vector<std::string> paths = {source.path};
  while (root.is_object() && root.contains("like")) {
    if (!root["like"].is_string()) {
      return fail({ErrorCode::kInvalidInput, fmt::format("{} is no GPU", json_excerpt(root["like"])),
                   paths.back() + "#/like", "an id of ns-dist list gpus, or a file"});
    }
    NS_TRY(const Source base, find_like(CatalogKind::kGpu, root["like"].get<std::string>(), paths));
    chain.push_back(std::move(root));
    NS_TRY(root, parse_json(base.text, base.path));
  }
  if (!chain.empty()) {
    NS_TRY_VOID(gpu_of(root, paths.back()));  // its own mistakes, with its own name
    if (is_neusight_device(root)) {
      return fail({ErrorCode::kInvalidInput, "a device file of NeuSight's has other keys",
                   paths[paths.size() - 2] + "#/like", "a GPU of ns-dist list gpus, or a file with its keys"});
    }
  }
  std::string like = chain.empty() ? "" : id_of(root);
  for (; !chain.empty(); chain.pop_back()) root = gpu_like(std::move(root), std::move(chain.back()));
  NS_TRY(Gpu gpu, gpu_of(root, source.path));
  gpu.like = std::move(like);
  return gpu;
}

Result<Fabric> Catalog::fabric(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kFabric, reference));
  return read_fabric(source.text, source.path);
}

Result<Model> Catalog::model(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kModel, reference));
  return read_model(source.text, source.path);
}

Result<Framework> Catalog::framework(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kFramework, reference));
  NS_TRY(Framework framework, read_framework(source.text, source.path));
  std::vector<std::string> paths = {source.path};
  for (std::string like = framework.like; !like.empty();) {
    NS_TRY(const Source found, find_like(CatalogKind::kFramework, like, paths));
    NS_TRY(const Framework base, read_framework(found.text, found.path));
    add_missing(framework.set, base.set);
    add_missing(framework.only, base.only);
    like = base.like;
  }
  return framework;
}

Result<PublishedRuns> Catalog::runs(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kRuns, reference));
  return read_runs(source.text, source.path);
}

Result<Cluster> Catalog::cluster(std::string_view reference) const {
  NS_TRY(const Source source, find(CatalogKind::kCluster, reference));
  return read_cluster(source.text, source.path, *this);
}

Result<Cluster> Catalog::usual_machine(const Gpu& gpu, std::string_view file) const {
  if (gpu.usual_cluster.empty()) {
    return fail(
        {ErrorCode::kInvalidInput, fmt::format("the usual machine of the GPU \"{}\" is unknown", gpu.id), "",
         "a GPU with a usual cluster, or a description of the machine",
         "write machine/cluster, or machine/intra and machine/inter (ns-dist list clusters, ns-dist list fabrics)"});
  }
  auto usual = cluster(gpu.usual_cluster);
  if (!usual) {
    if (usual.error().where.empty()) {
      usual.error().where = file.empty() ? fmt::format("usual_cluster of the GPU \"{}\"", gpu.id)
                                         : fmt::format("{}#/usual_cluster", file);
    }
    return usual;
  }
  return built_for(gpu, *usual);
}

Result<Cluster> Catalog::measured_machine(std::string_view gpu, std::string_view system) const {
  if (gpu.empty()) return cluster(system);
  NS_TRY(const Gpu found, this->gpu(gpu));
  if (!system.empty()) {
    if (const auto known = cluster(system)) return with_gpu(*known, found);
  }
  NS_TRY(Cluster usual, usual_machine(found));
  if (!system.empty()) usual.id = system;
  return usual;
}

bool Catalog::is_built_in() const {
  return std::none_of(folders_.begin(), folders_.end(), [](const std::filesystem::path& folder) {
    std::error_code status;
    return std::filesystem::exists(folder, status);
  });
}

std::vector<InputFile> Catalog::inputs() const {
  std::vector<InputFile> all;
  const std::scoped_lock guard(reads_->lock);
  for (const auto& [path, hash] : reads_->hashes) all.push_back({path, hash});
  return all;
}

}  // namespace ns_dist
