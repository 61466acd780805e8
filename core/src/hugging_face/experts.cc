// Which layers have experts, and what these are.
#include "decoder.h"
#include "layers.h"

namespace ns_dist::hugging_face {

void read_experts(JsonReader& reader, const Family& family, Model& model) {
  Experts moe;
  moe.experts = size(reader, family, {"n_routed_experts", "moe_num_experts", "num_experts", "num_local_experts"});
  moe.top_k = size(reader, family,
                   {"experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts",
                    "num_experts_per_tok"});
  moe.expert_ffn = size_or(reader, family, {"expert_ffn_hidden_size", "moe_intermediate_size"}, model.ffn);
  model.ffn = size_or(reader, family, {"intermediate_size_mlp", "dense_intermediate_size"}, model.ffn);
  const std::string_view width = first_of(reader, {"shared_expert_intermediate_size", "shared_intermediate_size",
                                                   "share_expert_dim", "moe_shared_expert_intermediate_size"});
  // Of files that give a width alone; of width 0 there is none.
  const bool has_width = present(reader, width) && reader.integer(width, 0, kMostSize) > 0;
  const std::int64_t fallback = family.shared_expert || has_width ? 1 : 0;
  const std::string_view shared =
      first_of(reader, {"num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "n_shared_experts"});
  moe.shared_experts = present(reader, shared) ? number_of_layers(reader, shared, 0, kMostSize) : fallback;
  if (moe.shared_experts > 0) moe.shared_expert_ffn = size_or(reader, family, {width}, moe.expert_ffn);
  moe.shared_gate = present(reader, "shared_expert_intermediate_size");
  // An MLP for all tokens beside the experts: of the layers' width (Grok-2, Gemma 4), or as wide as the hidden states
  // (Arctic).
  const bool beside = reader.boolean("use_residual", false) || reader.boolean("parallel_attn_mlp_res", false);
  const bool as_wide = reader.boolean("residual_moe", false) || reader.boolean("enable_moe_block", false);
  if (moe.shared_experts == 0 && (beside || as_wide)) {
    moe.shared_experts = 1;
    moe.shared_expert_ffn = beside ? model.hidden : model.ffn;
  }
  moe.latent = reader.integer(first_of(reader, {"routed_expert_hidden_size", "moe_latent_size"}), 0, kMostSize,
                              Presence::kOptional, 0);
  // DeepSeek-V2 names its limited routing "group_limited_greedy"; "greedy" has none.
  if (!present(reader, "topk_method") || reader.text("topk_method") != "greedy") {
    // Hunyuan-A13B says "false" where there are none.
    const auto is_false = [&](std::string_view key) { return reader.json(key, Presence::kOptional) == "false"; };
    moe.groups = is_false("n_group") ? 1 : size_or(reader, family, {"n_group"}, 1);
    moe.top_groups = is_false("topk_group") ? moe.groups : size_or(reader, family, {"topk_group"}, moe.groups);
  }
  moe.first_dense_layers =
      reader.integer(first_of(reader, {"num_dense_layers", "moe_layer_start_index", "first_k_dense_replace"}), 0,
                     kMostSize, Presence::kOptional, 0);
  if (present(reader, "mlp_layer_types")) {
    moe.layers = layers_where(types_of_layers(reader, "mlp_layer_types", model),
                              [](const std::string& type) { return type == "sparse"; });
    moe.first_dense_layers = 0;
  } else if (reader.json("moe_layer_freq", Presence::kOptional).starts_with('[')) {
    moe.layers = flagged_layers(reader, "moe_layer_freq", model, 1);  // with experts
    moe.first_dense_layers = 0;
  } else if (present(reader, "moe_layers_enum")) {
    moe.layers = layers_in_text(reader, "moe_layers_enum", model);
  } else if (present(reader, "moe_layers")) {
    moe.layers = listed_layers(reader, "moe_layers", model, true);
  } else if (const std::int64_t every = size_or(reader, family, {"moe_layer_freq"}, 1); every > 1) {
    std::vector<bool> member = none_of_layers(model);  // counted from layer 0 (modeling_deepseek.py)
    for (std::size_t i = 0; i < member.size(); i += static_cast<std::size_t>(every)) member[i] = true;
    moe.layers = LayerSet::of(member);
  } else {
    moe.layers.every = size_or(reader, family, {"interleave_moe_layer_step", "decoder_sparse_step"}, 1);
    if (const LayerSet experts = listed_layers(reader, "mlp_only_layers", model, false); experts.every != 1) {
      std::vector<bool> member = none_of_layers(model);
      for (std::size_t i = 0; i < member.size(); ++i) {
        const auto layer = static_cast<std::int64_t>(i);
        member[i] = moe.layers.contains(layer) && experts.contains(layer);
      }
      moe.layers = LayerSet::of(member);
    }
  }
  model.moe = std::move(moe);
}

}  // namespace ns_dist::hugging_face
