// Encoders: BERT and what derives from it.
#include <algorithm>

#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {
namespace {

void read_bert(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = reader.integer("intermediate_size", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 512, kMostTokens);
  model.position_table = model.sequence;
  // RobertaModel counts positions from behind the padding token's.
  if (family.model_type.ends_with("roberta")) model.sequence = std::max<std::int64_t>(1, model.sequence - 2);
  model.activation = plain_activation(reader.text("hidden_act", Presence::kOptional));
  model.dropout = reader.number("hidden_dropout_prob", 0, 1, Presence::kOptional, 0.1) > 0;
  model.embedding_norm = true;
  model.bidirectional = !reader.boolean("is_decoder", false);
  if (reader.integer("embedding_size", 1, kMostSize, Presence::kOptional, model.hidden) != model.hidden) {
    model.warnings.emplace_back("\"embedding_size\" is left out: embeddings are as wide as layers");
  }
}

// distilbert: DistilBertConfig. It has no table of segments.
void read_distilbert(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model, {"dim"}, {"n_heads"});
  model.ffn = reader.integer("hidden_dim", 1, kMostSize);
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 512, kMostTokens);
  model.position_table = model.sequence;
  model.activation = plain_activation(reader.text("activation", Presence::kOptional));
  model.dropout = reader.number("dropout", 0, 1, Presence::kOptional, 0.1) > 0;
  model.embedding_norm = true;
  model.bidirectional = true;
}

// modernbert: ModernBertConfig. Every third layer sees all tokens, beginning with the first one.
void read_modernbert(JsonReader& reader, const Family& family, Model& model) {
  read_body(reader, family, model);
  model.ffn = size(reader, family, {"intermediate_size"});
  model.sequence = size_or(reader, family, {"max_position_embeddings"}, 8192, kMostTokens);
  model.position = PositionKind::kRotary;
  model.embedding_norm = true;
  model.bidirectional = true;
  model.bias = reader.boolean("attention_bias", false);
  model.gated_mlp = true;
  model.activation = Activation::kGeglu;
  model.tied_embeddings = reader.boolean("tie_word_embeddings", true);
  model.sliding_window = reader.integer("local_attention", 0, kMostTokens, Presence::kOptional, 128);
  const std::int64_t every = reader.integer("global_attn_every_n_layers", 1, kMostSize, Presence::kOptional, 3);
  std::vector<bool> full = none_of_layers(model);
  for (std::size_t i = 0; i < full.size(); i += static_cast<std::size_t>(every)) full[i] = true;
  model.full_attention_layers = LayerSet::of(full);
}

constexpr Family kEncoders[] = {
    {.model_type = "bert", .read = read_bert},
    {.model_type = "roberta", .read = read_bert},
    {.model_type = "xlm-roberta", .read = read_bert},
    {.model_type = "distilbert", .read = read_distilbert},
    {.model_type = "modernbert", .read = read_modernbert},
};

}  // namespace

std::span<const Family> encoder_families() { return kEncoders; }

}  // namespace ns_dist::hugging_face
