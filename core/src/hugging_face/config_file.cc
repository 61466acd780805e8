// Hugging Face config.json files.
#include "config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "keys.h"

namespace ns_dist {
namespace hugging_face {
namespace {

// `outer_type`: of the file of which this is a part, or that this is.
void read_text_model(JsonReader& reader, const std::string& outer_type, bool nested, Model& model) {
  reader.accept_unknown_keys();
  reader.treat_null_as_missing();
  std::string type = reader.text("model_type", Presence::kOptional);
  if (type.empty()) type = outer_type;
  if (find_family(type) == nullptr) {
    if (const Family* of_class = family_of_class(reader, !type.empty())) {
      if (!type.empty()) {
        model.warnings.push_back(
            fmt::format("model_type \"{}\" is not known: read as {}, whose class \"architectures\" names",
                        shortened(type), of_class->model_type));
      }
      type = of_class->model_type;
    }
  }
  const Family* const named = find_family(type);
  const bool known = named != nullptr;
  const Family* const begins = known ? nullptr : family_of_beginning(reader, type);
  if (note_foreign(reader, begins == nullptr ? type : begins->model_type)) return;
  if (type.starts_with("clip") || type.starts_with("siglip")) {
    return reader.note("model_type", fmt::format("\"{}\" is no language model", shortened(type)),
                       "a type of configs/README.md");
  }
  const Family* const family = known ? named : begins != nullptr ? begins : &nearest_family(reader, type);
  const std::size_t errors_before = reader.error_count();
  model.family = std::string(known ? type : family->model_type);
  Family as_read = *family;
  as_read.sparse = nested && known;
  as_read.windowed = !type.starts_with("qwen") && type != "llama";  // LlamaConfig has no window
  model.vocabulary = size(reader, as_read, {"padded_vocab_size", "vocab_size"});
  const std::string activation = activation_of(reader, *family);
  if (!known && begins == nullptr) {
    // Of what a class does without saying so, another one has what its keys ask for.
    as_read.attention_gate = false;
    if (!as_read.delta) as_read.rotary = 1, as_read.qk_norm = QueryKeyNorm::kNone;
    if (has_no_gate(activation)) as_read.gated = false;
  }
  if (type.find("gemma") != std::string::npos) as_read.tied = true;
  family->read(reader, as_read, model);
  if (model.position != PositionKind::kRotary) {
    model.most_positions = 0;
  } else if (model.most_positions == 0 &&  // of a reader that is not made of read_decoder
             present(reader,
                     first_of(reader, {"n_positions", "max_seq_len", "seq_length", "max_position_embeddings"}))) {
    model.most_positions = model.sequence;
  }
  if (active(reader, "cross_attention_layers")) {
    model.warnings.emplace_back("\"cross_attention_layers\" is left out: these layers attend to tokens of the text");
  }
  if (known) return;
  refuse_unread_experts(reader, model);
  const std::string unknown =
      type.empty() ? "no \"model_type\"" : fmt::format("model_type \"{}\" is not known", shortened(type));
  if (reader.error_count() == errors_before) {
    std::string told = fmt::format("{}: read as {}, {}", unknown, family->model_type,
                                   begins == nullptr ? "by its keys" : "by its name");
    if (as_read.gated != family->gated) told += fmt::format("; an MLP with \"{}\" has no gate", activation);
    if (!present(reader, "tie_word_embeddings")) {
      told += fmt::format("; without \"tie_word_embeddings\" logits have {}",
                          model.tied_embeddings ? "the embedding's weights" : "weights of their own");
    }
    model.warnings.push_back(std::move(told));
    return;
  }
  if (!reader.misses_keys(errors_before)) return;  // what is wrong is said
  std::vector<std::string> names;
  for (const Family& each : families()) names.emplace_back(each.model_type);
  const std::string near = nearest_name(type, names);
  reader.note("model_type", fmt::format("{}, and the keys are not those of {} either", unknown, family->model_type),
              "a type of configs/README.md",
              did_you_mean(near, "add the keys that are missing, or write the model as our JSON (configs/README.md)"));
}

// PretrainedConfig: two labels, unless id2label or num_labels tells others; one of a reward model.
void read_classifier(JsonReader& reader, Model& model) {
  const std::vector<std::string> classes = reader.texts("architectures");
  const auto names = [&](std::string_view end) {
    return std::any_of(classes.begin(), classes.end(), [&](const std::string& name) { return name.ends_with(end); });
  };
  if (names("TextModel") || names("EncoderModel") ||
      (!classes.empty() && folded(classes.front()) == folded(model.family) + "model")) {
    model.warnings.push_back(
        fmt::format("\"{}\" has no logits: those of a language model are forecast", shortened(classes.front())));
  }
  if (!names("ForSequenceClassification") && !names("ForTokenClassification") && !names("RewardModel")) return;
  const std::int64_t usual = names("RewardModel") && !names("ProcessRewardModel") ? 1 : 2;
  model.labels = reader.integer("num_labels", 1, kMostSize, Presence::kOptional, usual);
  reader.object(
      "id2label",
      [&](JsonReader& labels) {
        labels.accept_unknown_keys();
        model.labels = std::max<std::int64_t>(1, static_cast<std::int64_t>(labels.keys().size()));
      },
      Presence::kOptional);
  model.prediction_layers = 0;
}

constexpr std::int64_t kLongSequence = 32'768;

}  // namespace
}  // namespace hugging_face

using hugging_face::first_of;
using hugging_face::present;

bool is_hugging_face(const nlohmann::ordered_json& root) {
  return root.is_object() && !root.contains("schema") &&
         (root.contains("model_type") || root.contains("architectures") || root.contains("num_hidden_layers"));
}

Model read_hugging_face(JsonReader& reader) {
  reader.accept_unknown_keys();
  Model model;
  model.name = reader.text("_name_or_path", Presence::kOptional);
  const std::string type = reader.text("model_type", Presence::kOptional);
  // Multimodal models keep their language model under a key of its own.
  const auto read_part = [&](JsonReader& part) {
    hugging_face::read_text_model(part, type, true, model);
    hugging_face::warn_of_left_out(part, model);
  };
  const std::string_view inner = first_of(reader, {"llm_config", "language_config", "thinker_config", "text_config"});
  if (present(reader, inner) && !present(reader, "num_hidden_layers")) {
    reader.object(inner, [&](JsonReader& text) {
      constexpr std::string_view kText = "text_config";
      if (inner == kText || !present(text, kText)) return read_part(text);
      text.accept_unknown_keys();
      text.object(kText, read_part);
    });
    model.tied_embeddings = reader.boolean("tie_word_embeddings", model.tied_embeddings);
    model.warnings.push_back(fmt::format("only \"{}\" is read: encoders of images and sound are left out", inner));
  } else {
    hugging_face::read_text_model(reader, type, false, model);
    const std::string_view encoder = first_of(reader, {"vision_config", "audio_config"});
    if (present(reader, encoder)) {
      model.warnings.push_back(
          fmt::format("\"{}\" is left out: encoders of images and sound are not forecast", encoder));
    }
  }
  hugging_face::read_classifier(reader, model);
  hugging_face::warn_of_left_out(reader, model);
  model.longest_sequence = model.sequence > hugging_face::kLongSequence;
  if (model.head_dim == 0 && model.heads > 0) {
    if (model.hidden % model.heads != 0) {
      reader.note("", fmt::format("{} heads do not divide a hidden size of {}", model.heads, model.hidden));
    }
    model.head_dim = model.hidden / model.heads;
  }
  return model;
}

}  // namespace ns_dist
