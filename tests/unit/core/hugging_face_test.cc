// Are configurations read as their authors publish them, and is it said what was read otherwise?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ns_dist/catalog.h"
#include "ns_dist/parameters.h"

namespace ns_dist {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Result<Model> read(const std::string& json) { return read_model(json, "some/model/config.json"); }

// LlamaConfig has no window, and transformers reads none from its files; MistralConfig has one.
TEST(HuggingFace, ALlamaHasNoWindow) {
  const auto window = [](const char* type) {
    return read(std::string(
                    R"({"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 32000,
        "intermediate_size": 4096, "sliding_window": 512, "model_type": ")") +
                type + "\"}")
        ->sliding_window;
  };
  EXPECT_EQ(window("llama"), 0);
  EXPECT_EQ(window("mistral"), 512);
}

// Lists that have an entry for each layer, in files that were shortened by hand.
TEST(HuggingFace, ListsOfLayersAreWhole) {
  for (const char* own :
       {R"("lfm2", "layer_types": ["conv", "full_attention"])",
        R"("granitemoehybrid", "layer_types": ["mamba", "attention"])",
        R"("gemma3_text", "layer_types": ["full_attention"])",
        R"("glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"])",
        R"("smollm3", "no_rope_layers": [1, 0])",
        R"("mimo_v2_flash", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1],
           "sliding_window": 128, "hybrid_layer_pattern": [1, 0])",
        R"("laguna", "n_routed_experts": 8, "num_experts_per_tok": 2, "num_attention_heads_per_layer": [16, 16])"}) {
    const auto model = read(std::string(R"({"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 8, "intermediate_size": 4096, "moe_intermediate_size": 512, "vocab_size": 65536,
        "max_position_embeddings": 4096, "model_type": )") +
                            own + "}");
    ASSERT_FALSE(model) << own;
    EXPECT_THAT(to_text(model.error()), HasSubstr("entries for 16 layers; expected one entry for each layer")) << own;
  }
}

// Published configurations, cut to the keys that are read, and the parameters that are published with them.
struct Published {
  const char* json;
  double parameters, tolerance = 3e-3;
};

const Published kPublished[] = {
    // Hunyuan-A13B: 80.4 B
    {R"({"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attention_head_dim": 128, "intermediate_size": 3072, "num_experts": 64,
         "moe_intermediate_size": [3072], "moe_topk": [8], "num_shared_expert": [1], "vocab_size": 128167,
         "n_group": false, "topk_group": false, "tie_word_embeddings": true, "max_position_embeddings": 32768})",
     80.4e9},
    // Granite 3.1 2B inside Granite-Vision, without the heads that its class has
    {R"({"model_type": "llava_next", "text_config": {"model_type": "granite", "hidden_size": 2048,
         "intermediate_size": 8192, "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 49156,
         "tie_word_embeddings": true}})",
     2.53e9},
    {R"({"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "n_inner": null,
         "vocab_size": 50257, "activation_function": "gelu_new", "resid_pdrop": 0.1})",
     1.5576e9, 1e-3},
    {R"({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
         "vocab_size": 50400, "tie_word_embeddings": false})",
     6.05e9},
    {R"({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24576,
         "n_positions": 8192, "vocab_size": 49152, "multi_query": true})",
     15.5e9},
    // ChatGLM3 6B; GLM-4 9B under ChatGLM's keys.
    {R"({"model_type": "chatglm", "add_bias_linear": false, "add_qkv_bias": true, "ffn_hidden_size": 13696,
         "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2,
         "num_attention_heads": 32, "num_layers": 28, "padded_vocab_size": 65024, "rmsnorm": true,
         "seq_length": 8192, "tie_word_embeddings": false})",
     6.2436e9, 1e-4},
    {R"({"model_type": "chatglm", "add_bias_linear": false, "add_qkv_bias": true, "ffn_hidden_size": 13696,
         "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2,
         "num_attention_heads": 32, "num_layers": 40, "padded_vocab_size": 151552, "rmsnorm": true,
         "seq_length": 131072, "tie_word_embeddings": false, "vocab_size": 151552})",
     9.4e9},
    // GPT-Neo 1.3B and 2.7B (the latter's file names each layer, too), XGLM 564M, DistilBERT.
    {R"({"model_type": "gpt_neo", "activation_function": "gelu_new", "attention_types": [[["global", "local"], 12]],
         "hidden_size": 2048, "intermediate_size": null, "max_position_embeddings": 2048, "num_heads": 16,
         "num_layers": 24, "resid_dropout": 0, "vocab_size": 50257, "window_size": 256})",
     1.3156e9, 1e-3},
    {R"({"model_type": "gpt_neo", "activation_function": "gelu_new", "attention_types": [[["global", "local"], 16]],
         "attention_layers": ["global", "local", "global", "local", "global", "local", "global", "local", "global",
             "local", "global", "local", "global", "local", "global", "local", "global", "local", "global", "local",
             "global", "local", "global", "local", "global", "local", "global", "local", "global", "local", "global",
             "local"], "hidden_size": 2560, "intermediate_size": null, "max_position_embeddings": 2048,
         "num_heads": 20, "num_layers": 32, "vocab_size": 50257})",
     2.6513e9, 1e-3},
    {R"({"model_type": "xglm", "activation_function": "gelu", "attention_heads": 16, "d_model": 1024, "dropout": 0.1,
         "ffn_dim": 4096, "max_position_embeddings": 2048, "num_layers": 24, "vocab_size": 256008})",
     0.5645e9, 1e-3},
    {R"({"model_type": "distilbert", "activation": "gelu", "dim": 768, "dropout": 0.1, "hidden_dim": 3072,
         "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6, "vocab_size": 30522})",
     66.36e6, 2e-3},
    {R"({"model_type": "opt", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
         "ffn_dim": 16384, "max_position_embeddings": 2048, "vocab_size": 50272, "activation_function": "relu"})",
     6.66e9, 5e-3},
    {R"({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
         "max_seq_len": 2048, "no_bias": true, "vocab_size": 50432})",
     6.65e9},
    {R"({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
         "multi_query": true, "parallel_attn": true, "new_decoder_architecture": false, "bias": false,
         "vocab_size": 65024})",
     6.9217e9, 1e-3},
    {R"({"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
         "num_kv_heads": 8, "new_decoder_architecture": true, "bias": false, "vocab_size": 65024})",
     41.303e9, 1e-3},
    {R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
         "num_hidden_layers": 32, "vocab_size": 32000, "hidden_act": "silu", "tie_word_embeddings": false})",
     6.738e9, 1e-3},
    {R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000, "sliding_window": 4096})",
     7.24e9, 1e-3},
    {R"({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 131072,
         "sliding_window": null})",
     12.2e9, 5e-3},
    {R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
         "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 152064, "tie_word_embeddings": false})",
     7.616e9, 1e-3},
    {R"({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
         "num_key_value_heads": 16, "num_hidden_layers": 24, "vocab_size": 151936, "moe_intermediate_size": 1408,
         "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
         "decoder_sparse_step": 1, "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21,
         "tie_word_embeddings": false})",
     14.3e9},
    {R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 36, "head_dim": 128, "vocab_size": 151936,
         "tie_word_embeddings": false})",
     8.19e9},
    {R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
         "num_key_value_heads": 4, "num_hidden_layers": 48, "head_dim": 128, "vocab_size": 151936,
         "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
         "mlp_only_layers": [], "tie_word_embeddings": false})",
     30.5e9},
    {R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000, "num_local_experts": 8,
         "num_experts_per_tok": 2, "sliding_window": null})",
     46.7e9, 1e-3},
    {R"({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
         "num_key_value_heads": 8, "num_hidden_layers": 42, "head_dim": 256, "vocab_size": 256000,
         "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096})",
     9.24e9},
    {R"({"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32,
         "num_hidden_layers": 32, "partial_rotary_factor": 0.4, "vocab_size": 51200, "tie_word_embeddings": false})",
     2.78e9},
    {R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
         "num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32064, "sliding_window": 2047})",
     3.82e9},
    {R"({"model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32064, "num_local_experts": 16,
         "num_experts_per_tok": 2, "attention_bias": true, "sliding_window": 131072})",
     41.9e9},
    {R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
         "num_key_value_heads": 8, "num_hidden_layers": 24, "head_dim": 64, "vocab_size": 201088,
         "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": true, "sliding_window": 128,
         "initial_context_length": 4096, "rope_scaling": {"original_max_position_embeddings": 4096, "factor": 32.0},
         "quantization_config": {"quant_method": "mxfp4"}})",
     20.91e9, 3e-4},
    {R"({"model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32,
         "num_key_value_heads": 2, "num_hidden_layers": 40, "head_dim": 128, "vocab_size": 151552,
         "partial_rotary_factor": 0.5, "attention_bias": false})",
     9.4e9},
    {R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
         "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129280, "moe_intermediate_size": 2048,
         "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
         "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": false})",
     671e9, 1e-3},
    {R"({"model_type": "nemotron", "hidden_size": 3072, "intermediate_size": 9216, "num_attention_heads": 24,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "head_dim": 128, "vocab_size": 256000,
         "hidden_act": "relu2", "partial_rotary_factor": 0.5, "tie_word_embeddings": false})",
     4.19e9},
    {R"({"model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 52, "head_dim": 128, "vocab_size": 131072,
         "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "mlp_hidden_act": "relu2",
         "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4})",
     8.1e9},
    {R"({"model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "num_attention_heads": 32,
         "num_key_value_heads": 2, "num_hidden_layers": 52, "head_dim": 128, "vocab_size": 131072,
         "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mlp_hidden_act": "relu2",
         "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
         "moe_shared_expert_intermediate_size": 3712, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
         "ssm_state_size": 128, "conv_kernel": 4})",
     31.6e9},
    {R"({"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24,
         "num_key_value_heads": 2, "num_hidden_layers": 30, "vocab_size": 49152, "use_bias": true,
         "sliding_window": 4096})",
     3.03e9},
    {R"({"model_type": "stablelm", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
         "num_key_value_heads": 32, "num_hidden_layers": 24, "vocab_size": 100352, "use_qkv_bias": true,
         "tie_word_embeddings": false})",
     1.64e9},
    {R"({"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
         "num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 100352})",
     7.3e9},
    {R"({"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_attention_heads": 16,
         "num_key_value_heads": 16, "num_hidden_layers": 16, "num_experts": 64, "num_experts_per_tok": 8,
         "vocab_size": 50304})",
     6.92e9},
    {R"({"model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 40, "vocab_size": 49155, "tie_word_embeddings": true})",
     8.17e9},
    {R"({"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
         "num_key_value_heads": 4, "num_hidden_layers": 36, "vocab_size": 128256, "no_rope_layer_interval": 4})",
     3.08e9},
    {R"({"model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "num_attention_heads": 64,
         "num_key_value_heads": 64, "num_hidden_layers": 40, "vocab_size": 256000})",
     34.98e9},
    {R"({"model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 256000, "sliding_window": 4096,
         "sliding_window_pattern": 4})",
     8.03e9},
    // Of types that no row names: without a gate, by the activation; without shared experts, by their width.
    {R"({"model_type": "arcee", "hidden_act": "relu2", "hidden_size": 2560, "intermediate_size": 18432,
         "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 36,
         "vocab_size": 128004, "tie_word_embeddings": false})",
     4.62e9, 2e-2},
    {R"({"model_type": "apertus", "hidden_act": "xielu", "hidden_size": 8192, "intermediate_size": 43008,
         "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80, "vocab_size": 131072})",
     70.6e9},
    // Experts in an object of their own; in lists of equal numbers; in layers that a list of 0 and 1 names.
    {R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
         "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}})",
     132e9, 5e-3},
    {R"({"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "intermediate_size": 3072, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attention_head_dim": 128, "num_hidden_layers": 32, "num_experts": 64,
         "moe_topk": [8, 8], "moe_intermediate_size": [3072, 3072], "num_shared_expert": [1, 1], "use_qk_norm": true,
         "tie_word_embeddings": true, "vocab_size": 128167})",
     80.4e9},
    {R"({"model_type": "afmoe", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 32, "num_experts": 128,
         "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1, "num_dense_layers": 2,
         "sliding_window": 2048, "tie_word_embeddings": false, "vocab_size": 200192})",
     26.1e9},
    // Weights that no key tells: logits of the embedding's table (MiniCPM), halves of the MLP (Molmo).
    {R"({"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36,
         "num_hidden_layers": 40, "vocab_size": 122753})",
     2.72e9},
    {R"({"model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "num_attention_heads": 40,
         "num_hidden_layers": 62, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
         "qk_rope_head_dim": 32, "vocab_size": 73448})",
     4.07e9},
    {R"({"model_type": "molmo", "hidden_size": 3584, "intermediate_size": 37888, "num_attention_heads": 28,
         "num_key_value_heads": 4, "num_hidden_layers": 28, "qkv_bias": true, "vocab_size": 152064,
         "embedding_size": 152064, "tie_word_embeddings": false})",
     7.616e9},
    {R"({"model_type": "modernbert", "hidden_size": 768, "intermediate_size": 1152, "num_attention_heads": 12,
         "num_hidden_layers": 22, "vocab_size": 50368})",
     0.149e9},
    {R"({"model_type": "minimax_m2", "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
         "intermediate_size": 1536, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
         "num_key_value_heads": 8, "num_local_experts": 256, "shared_intermediate_size": 0, "vocab_size": 200064})",
     229e9},
    // BitNet's MLP has a gate beside relu2; QWen's halves of the MLP have half its width.
    {R"({"model_type": "bitnet", "hidden_act": "relu2", "hidden_size": 2560, "intermediate_size": 6912,
         "num_attention_heads": 20, "num_key_value_heads": 5, "num_hidden_layers": 30, "vocab_size": 128256})",
     2.41e9},
    {R"({"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "no_bias": true,
         "num_attention_heads": 32, "num_hidden_layers": 32, "seq_length": 8192, "tie_word_embeddings": false,
         "vocab_size": 151936})",
     7.72e9},
    {R"({"model_type": "jais", "activation_function": "swiglu", "n_embd": 5120, "n_head": 40, "n_inner": 13653,
         "n_layer": 40, "n_positions": 2048, "vocab_size": 84992})",
     13.0e9},
    {R"({"model_type": "mpt", "attn_config": {"kv_n_heads": 8, "alibi": true}, "ffn_config": {"ffn_type": "mptmlp"},
         "d_model": 3072, "expansion_ratio": 4, "n_heads": 24, "n_layers": 32, "no_bias": true, "vocab_size": 32768})",
     3.32e9},
    // A dense MLP beside the experts: of the layers' width, and as wide as the hidden states.
    {R"({"model_type": "git", "hidden_size": 8192, "intermediate_size": 32768, "moe_intermediate_size": 16384,
         "num_experts_per_tok": 2, "num_local_experts": 8, "residual_moe": true, "num_attention_heads": 64,
         "num_key_value_heads": 8, "num_hidden_layers": 64, "head_dim": 128, "vocab_size": 131072})",
     269.5e9},
    {R"({"model_type": "arctic", "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 4864,
         "num_attention_heads": 56, "num_experts_per_tok": 2, "num_hidden_layers": 35, "num_key_value_heads": 8,
         "num_local_experts": 128, "parallel_attn_mlp_res": true, "use_residual": true, "tie_word_embeddings": false,
         "vocab_size": 32000})",
     478.6e9},
    // Dense layers under other keys, or named one by one.
    {R"({"model_type": "ernie4_5_moe", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 12288,
         "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_start_index": 1, "moe_num_experts": 64,
         "moe_num_shared_experts": 2, "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4,
         "tie_word_embeddings": true, "vocab_size": 103424})",
     21.8e9},
    {R"({"model_type": "glm4_moe", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96,
         "num_experts_per_tok": 8, "num_hidden_layers": 3, "num_key_value_heads": 8, "attention_bias": true,
         "mlp_layer_types": ["dense", "sparse", "sparse"], "vocab_size": 151552})",
     // Attention, experts with router and norms of two layers, a dense layer, both tables.
     3 * (2.0 * 96 * 128 + 2 * 8 * 128) * 4096 + 2 * (129 * 3.0 * 1408 + 128) * 4096 + 3.0 * 10944 * 4096 +
         2.0 * 151552 * 4096,
     1e-3},
    // Classes that may have experts or Mamba layers, and have none.
    {R"({"model_type": "doge", "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 2048, "is_moe": false,
         "num_attention_heads": 8, "num_experts": 16384, "num_experts_per_tok": 64, "num_hidden_layers": 32,
         "num_key_value_heads": 4, "tie_word_embeddings": true, "vocab_size": 32768})",
     0.335e9},
    {R"({"model_type": "granitemoehybrid", "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 8192,
         "layer_types": ["attention", "attention"], "mamba_d_state": 128, "mamba_n_heads": 128,
         "num_attention_heads": 40, "num_experts_per_tok": 0, "num_hidden_layers": 2, "num_key_value_heads": 8,
         "num_local_experts": 0, "shared_intermediate_size": 8192, "tie_word_embeddings": true, "vocab_size": 100352})",
     2 * (2.0 * 40 * 64 + 2 * 8 * 64 + 3 * 8192) * 2560 + 100352.0 * 2560, 1e-3},
    // Mamba-2 in most layers, with experts behind it as behind attention (Granite 4 H small); an MLP (Bamba).
    {R"({"model_type": "granitemoehybrid", "hidden_size": 4096, "intermediate_size": 768, "num_hidden_layers": 5,
         "layer_types": ["mamba", "mamba", "mamba", "mamba", "attention"], "mamba_d_conv": 4, "mamba_d_head": 64,
         "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_n_heads": 128, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_experts_per_tok": 10, "num_local_experts": 72, "shared_intermediate_size": 1536,
         "position_embedding_type": "nope", "tie_word_embeddings": true, "vocab_size": 100352})",
     5 * (72 * 3.0 * 768 + 3 * 1536 + 72) * 4096 + 4 * (2 * 8192.0 + 2 * 128 + 128 + 8192) * 4096 +
         (2.0 * 32 + 2 * 8) * 128 * 4096 + 100352.0 * 4096,
     1e-3},
    {R"({"model_type": "bamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "attn_layer_indices": [9, 18, 27], "mamba_d_conv": 4, "mamba_d_head": "auto", "mamba_d_state": 128,
         "mamba_n_groups": 1, "mamba_n_heads": 128, "num_attention_heads": 32, "num_key_value_heads": 8,
         "tie_word_embeddings": false, "vocab_size": 128256})",
     9.78e9},
    // Experts that work on a part of the hidden size, behind one projection and before another.
    {R"({"model_type": "nemotron_h", "head_dim": 128, "hidden_size": 4096, "hybrid_override_pattern": "E*",
         "intermediate_size": 2688, "mamba_head_dim": 64, "mamba_num_heads": 128, "mlp_hidden_act": "relu2",
         "moe_intermediate_size": 2688, "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376,
         "n_groups": 8, "n_routed_experts": 512, "n_shared_experts": 1, "num_attention_heads": 32,
         "num_experts_per_tok": 22, "num_hidden_layers": 2, "num_key_value_heads": 2, "ssm_state_size": 128,
         "vocab_size": 131072})",
     512 * 2.0 * 2688 * 1024 + 2 * 1024.0 * 4096 + (512 + 2 * 5376.0) * 4096 + (2.0 * 32 + 2 * 2) * 128 * 4096 +
         2.0 * 131072 * 4096,
     1e-3},
    // Layers named by words, which are not counted by a key.
    {R"({"model_type": "nemotron_h", "head_dim": 128, "hidden_size": 2688, "intermediate_size": 1856,
         "mamba_head_dim": 64, "mamba_num_heads": 64, "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856,
         "moe_shared_expert_intermediate_size": 3712, "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1,
         "num_attention_heads": 32, "num_experts_per_tok": 6, "num_key_value_heads": 2, "ssm_state_size": 128,
         "layers_block_type": ["moe", "attention"], "vocab_size": 131072})",
     // Experts without a gate and their router, one layer of attention, two tables.
     (128 * 2.0 * 1856 + 2 * 3712 + 128) * 2688 + (2.0 * 32 + 2 * 2) * 128 * 2688 + 2.0 * 131072 * 2688, 1e-3},
    // Layers with a window have other heads than those that see all tokens. Gemma 4: one projection makes keys and
    // values of the latter; the smaller model has an MLP beside its experts.
    {R"({"model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": false, "global_head_dim": 512,
         "head_dim": 256, "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
         "num_global_key_value_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 16, "sliding_window": 1024,
         "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                         "sliding_attention", "full_attention"], "vocab_size": 262144})",
     (5 * (2.0 * 32 + 2 * 16) * 256 + (2.0 * 32 + 4) * 512 + 6 * 3 * 21504 + 262144) * 5376, 1e-3},
    // The same as transformers 5 writes it.
    {R"({"model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": false, "head_dim": 256,
         "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 6,
         "num_key_value_heads": 16, "sliding_window": 1024,
         "per_layer_config": {"05": {"head_dim": 512, "num_key_value_heads": 4}},
         "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                         "sliding_attention", "full_attention"], "vocab_size": 262144})",
     (5 * (2.0 * 32 + 2 * 16) * 256 + (2.0 * 32 + 4) * 512 + 6 * 3 * 21504 + 262144) * 5376, 1e-3},
    {R"({"model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": true, "global_head_dim": 512,
         "head_dim": 256, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
         "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 6,
         "num_key_value_heads": 8, "sliding_window": 1024, "top_k_experts": 8,
         "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                         "sliding_attention", "full_attention"], "vocab_size": 262144})",
     (5 * (2.0 * 16 + 2 * 8) * 256 + (2.0 * 16 + 2) * 512 + 6 * (3 * 2112 + 128 * 3 * 704 + 128) + 262144) * 2816,
     1e-3},
    // A small Gemma 4: the last four layers have queries alone and MLPs of twice the width; each adds its embeddings.
    {R"({"model_type": "gemma4_text", "attention_k_eq_v": false, "enable_moe_block": false, "global_head_dim": 512,
         "head_dim": 256, "hidden_size": 1536, "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
         "num_attention_heads": 8, "num_global_key_value_heads": null, "num_hidden_layers": 10,
         "num_key_value_heads": 1, "num_kv_shared_layers": 4, "sliding_window": 512, "use_double_wide_mlp": true,
         "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                         "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                         "sliding_attention", "full_attention"], "vocab_size": 262144,
         "vocab_size_per_layer_input": 131072})",
     (5 * 18.0 * 256 + 18 * 512 + 3 * 16.0 * 256 + 16 * 512 + (6 + 8) * 3 * 6144 + 10 * 3 * 256 + 262144) * 1536 +
         131072.0 * 2560,
     1e-3},
    // Falcon-H1 7B: attention and Mamba-2 side by side, and an MLP, in each of 44 layers.
    {R"({"model_type": "falcon_h1", "attn_layer_indices": null, "head_dim": 128, "hidden_size": 3072,
         "intermediate_size": 12288, "mamba_d_conv": 4, "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256,
         "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24, "num_attention_heads": 12,
         "num_hidden_layers": 44, "num_key_value_heads": 2, "tie_word_embeddings": false, "vocab_size": 130048})",
     7.59e9, 1e-3},
    // A searched architecture as of Llama-Nemotron: layers without attention, without an MLP, with MLPs of three
    // widths.
    {R"({"model_type": "nemotron-nas", "hidden_size": 8192, "intermediate_size": null, "num_attention_heads": 64,
         "num_hidden_layers": 4, "num_key_value_heads": null, "tie_word_embeddings": false, "vocab_size": 128256,
         "block_configs": [
           {"attention": {"n_heads_in_group": 8, "no_op": false}, "ffn": {"ffn_mult": 5.25, "no_op": false}},
           {"attention": {"n_heads_in_group": null, "no_op": true}, "ffn": {"ffn_mult": 1.3125, "no_op": false}},
           {"attention": {"n_heads_in_group": 8, "no_op": false}, "ffn": {"ffn_mult": null, "no_op": true}},
           {"attention": {"n_heads_in_group": 8, "no_op": false}, "ffn": {"ffn_mult": 2.625, "no_op": false}}]})",
     (3 * (2.0 * 64 + 2 * 8) * 128 + 3.0 * (28672 + 7168 + 14336) + 2 * 128256) * 8192, 1e-3},
    // Kimi Delta Attention, whose layers are counted from 1; latent attention with a gate, and experts of a part of the
    // hidden size, as in Kimi K3.
    {R"({"model_type": "kimi_linear", "first_k_dense_replace": 1, "hidden_size": 2304, "intermediate_size": 9216,
         "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [2], "head_dim": 128, "kda_layers": [1],
         "num_heads": 32, "short_conv_kernel_size": 4}, "moe_intermediate_size": 1024, "num_attention_heads": 32,
         "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 2, "num_shared_experts": 1,
         "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "vocab_size": 163840})",
     // Queries, keys, values and output, convolutions, decays, strengths and gates; attention; an MLP and experts.
     4.0 * 2304 * 4096 + 12 * 4096 + 2 * (2304 + 4096) * 128 + 2304 * 32 + 2304.0 * 32 * 192 + 2304 * 576 +
         512 * 32 * 256 + 4096 * 2304 + 2304.0 * (3 * 9216 + 257 * 3 * 1024 + 256 + 2 * 163840),
     1e-4},
    {R"({"model_type": "kimi_linear", "hidden_size": 1024, "intermediate_size": 2048, "kv_lora_rank": 128,
         "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_head_dim": 64,
         "linear_num_heads": 8, "mla_use_output_gate": true, "moe_intermediate_size": 512, "num_attention_heads": 8,
         "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_local_experts": 16, "q_lora_rank": null,
         "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "routed_expert_hidden_size": 512, "v_head_dim": 64,
         "vocab_size": 1000})",
     4.0 * 1024 * 512 + 12 * 512 + 2 * (1024 + 512) * 64 + 1024 * 8 + 1024 * 8 * 96 + 1024 * 160 + 128 * 8 * 128 +
         2.0 * 1024 * 512 + 2 * (16 * 3.0 * 512 * 512 + 1024 * 16 + 2 * 1024 * 512) + 2000 * 1024,
     1e-3},
    // Short convolutions in the place of attention: LFM2 1.2B, whose MLPs are narrower than told; LFM2 8B-A1B.
    {R"({"model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_multiple_of": 256, "conv_L_cache": 3,
         "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "intermediate_size": 12288,
         "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "vocab_size": 65536})",
     1.17e9, 5e-3},
    // The same as another copy has it: block_ff_dim is the width, whatever intermediate_size says.
    {R"({"model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_ff_dim": 12288, "block_multiple_of": 256,
         "conv_L_cache": 3, "conv_dim": 2048, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
         "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
         "vocab_size": 65536})",
     1.17e9, 5e-3},
    // ESM-2 650M, an encoder of proteins without segments.
    {R"({"model_type": "esm", "architectures": ["EsmForMaskedLM"], "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
         "hidden_size": 1280, "intermediate_size": 5120, "layer_norm_eps": 1e-05, "max_position_embeddings": 1026,
         "num_attention_heads": 20, "num_hidden_layers": 33, "vocab_size": 33})",
     0.651e9, 5e-3},
    {R"({"model_type": "lfm2_moe", "conv_L_cache": 3, "hidden_size": 2048, "intermediate_size": 7168,
         "layer_types": ["conv", "full_attention", "conv"], "moe_intermediate_size": 1792, "num_attention_heads": 32,
         "num_dense_layers": 1, "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 3,
         "num_key_value_heads": 8, "vocab_size": 65536})",
     (2 * (4 * 2048.0 + 3) + 2 * 2048 + 2 * 512 + 3 * 7168 + 2 * (32 * 3 * 1792 + 32) + 65536) * 2048, 1e-4},
    // Values narrower than keys (MiMo-V2-Flash); a gate for each head (Step-3.5, Laguna).
    {R"({"model_type": "mimo_v2_flash", "attention_chunk_size": 128, "head_dim": 192, "hidden_size": 4096,
         "hybrid_layer_pattern": [0, 1, 1], "intermediate_size": 16384, "moe_intermediate_size": 2048,
         "moe_layer_freq": [0, 1, 1], "n_routed_experts": 256, "num_attention_heads": 64, "num_experts_per_tok": 8,
         "num_hidden_layers": 3, "num_key_value_heads": 4, "sliding_window": 128, "swa_head_dim": 192,
         "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_v_head_dim": 128, "v_head_dim": 128,
         "vocab_size": 152576})",
     (64.0 * 320 + 4 * 320 + 2 * (64 * 320 + 8 * 320) + 3 * 16384 + 2 * (256 * 3 * 2048 + 256) + 2 * 152576) * 4096,
     1e-3},
    {R"({"model_type": "step3p5", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 11264,
         "attention_other_setting": {"attention_type": "sliding_attention", "head_dim": 128, "num_attention_groups": 8,
                                     "num_attention_heads": 96},
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
         "moe_intermediate_size": 1280, "moe_layers_enum": "1,2", "moe_num_experts": 288, "moe_top_k": 8,
         "num_attention_groups": 8, "num_attention_heads": 64, "num_hidden_layers": 3, "share_expert_dim": 1280,
         "sliding_window": 512, "use_head_wise_attn_gate": true, "use_qk_norm": true, "vocab_size": 128896})",
     ((2 * 64.0 + 2 * 8) * 128 + 64 + 2 * ((2 * 96 + 2 * 8) * 128 + 96) + 3 * 11264 + 2 * (289 * 3 * 1280 + 288) +
      2 * 128896) *
         4096,
     1e-3},
    {R"({"model_type": "laguna", "gating": "per-element", "head_dim": 128, "hidden_size": 2048,
         "intermediate_size": 8192, "layer_types": ["full_attention", "sliding_attention"],
         "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 512, "num_attention_heads": 48,
         "num_attention_heads_per_layer": [48, 64], "num_experts": 256, "num_experts_per_tok": 8,
         "num_hidden_layers": 2, "num_key_value_heads": 8, "shared_expert_intermediate_size": 512,
         "sliding_window": 512, "vocab_size": 100352})",
     ((3 * 48.0 + 2 * 8) * 128 + (3 * 64 + 2 * 8) * 128 + 3 * 8192 + 257 * 3 * 512 + 256 + 2 * 100352) * 2048, 1e-3},
};

TEST(HuggingFace, ConfigurationsHaveThePublishedParameters) {
  for (const Published& published : kPublished) {
    const auto model = read(published.json);
    ASSERT_TRUE(model) << to_text(model.error());
    EXPECT_NEAR(model_parameters(*model).total() / published.parameters, 1, published.tolerance) << model->family;
    EXPECT_EQ(model->id, "model");
  }
}

TEST(HuggingFace, ClassesSayWhatKeysDoNot) {
  const auto gpt = [](const std::string& more) {
    return *read(R"({"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, )" + more + "}");
  };
  const Model language = gpt(R"("architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new")");
  EXPECT_EQ(language.family, "gpt2");
  EXPECT_EQ(language.labels, 0);
  EXPECT_EQ(language.activation, Activation::kGeluNew);
  EXPECT_TRUE(language.warnings.empty());
  EXPECT_EQ(gpt(R"("architectures": ["GPT2ForSequenceClassification"])").labels, 2);
  const Model reward = gpt(R"("architectures": ["GPT2ForSequenceClassification"], "id2label": {"0": "LABEL_0"})");
  EXPECT_EQ(reward.labels, 1);
  EXPECT_FALSE(reward.ties_logits());
  EXPECT_EQ(gpt(R"("architectures": ["GPT2ForTokenClassification"], "num_labels": 9)").labels, 9);
  EXPECT_EQ(gpt(R"("architectures": ["GPT2ForRewardModel"])").labels, 1);
  EXPECT_EQ(gpt(R"("architectures": ["GPT2ForProcessRewardModel"])").labels, 2);
  EXPECT_THAT(gpt(R"("architectures": ["GPT2Model"])").warnings, ElementsAre(HasSubstr("\"GPT2Model\" has no logits")));
  // The table of 100 x 64 is not read again: one row of scores.
  EXPECT_EQ(model_parameters(reward).output - 64, 1);
}

// ChatGLM's files count layers, groups of heads and rows of the vocabulary under keys of Megatron.
TEST(HuggingFace, ChatGlmHasKeysOfItsOwn) {
  const auto glm = [](const std::string& more) {
    return read(R"({"model_type": "chatglm", "ffn_hidden_size": 256, "hidden_size": 64, "kv_channels": 16,
        "num_attention_heads": 4, "num_layers": 2, "padded_vocab_size": 128)" +
                more + "}");
  };
  const auto grouped = glm(R"(, "multi_query_attention": true, "multi_query_group_num": 2, "seq_length": 4096,
      "add_qkv_bias": true, "vocab_size": 100)");
  ASSERT_TRUE(grouped) << to_text(grouped.error());
  EXPECT_EQ(grouped->vocabulary, 128);
  EXPECT_EQ(grouped->kv_heads, 2);
  EXPECT_EQ(grouped->rotary_dim, 8);
  EXPECT_EQ(grouped->sequence, 4096);
  EXPECT_EQ(grouped->most_positions, 4096);
  EXPECT_TRUE(grouped->qkv_bias);
  EXPECT_FALSE(grouped->bias);
  EXPECT_FALSE(grouped->tied_embeddings);
  EXPECT_TRUE(grouped->warnings.empty());
  EXPECT_EQ(glm(R"(, "multi_query_group_num": 2)")->kv_heads, 4) << "without multi_query_attention all have their own";
  EXPECT_THAT(to_text(glm(R"(, "multi_query_attention": true, "multi_query_group_num": 3)").error()),
              HasSubstr("multi_query_group_num: 3 does not divide 4 heads"));
  EXPECT_THAT(to_text(glm(R"(, "position_encoding_2d": true)").error()),
              HasSubstr("positions in two dimensions cannot be forecast"));
}

// JetMoE 8B: 8.52 B parameters, of which six of eight experts of attention are not described.
TEST(HuggingFace, ExpertsOfAttentionAreTold) {
  const auto jet = read(R"({"model_type": "jetmoe", "activation_function": "silu", "hidden_size": 2048,
      "intermediate_size": 5632, "kv_channels": 128, "max_position_embeddings": 4096, "num_experts_per_tok": 2,
      "num_hidden_layers": 24, "num_key_value_heads": 16, "num_local_experts": 8, "tie_word_embeddings": true,
      "vocab_size": 32000})");
  ASSERT_TRUE(jet) << to_text(jet.error());
  EXPECT_EQ(jet->family, "jetmoe");
  EXPECT_EQ(jet->heads, 32);
  EXPECT_EQ(jet->kv_heads, 16);
  EXPECT_EQ(jet->moe->experts, 8);
  EXPECT_EQ(jet->moe->expert_ffn, 5632);
  const double left_out = 24 * 6.0 * 2 * 2048 * 2048;
  EXPECT_NEAR((model_parameters(*jet).total() + left_out) / 8.52e9, 1, 3e-3);
  EXPECT_THAT(jet->warnings, ElementsAre("attention has experts: a token's 2 are forecast as 32 heads, and the other 6 "
                                         "with the router, 1.21B parameters, are left out"));
}

// GPTNeoConfig: attention_types is a list of kinds of attention and how often they repeat.
TEST(HuggingFace, GptNeoNamesItsLayersInTurn) {
  const auto neo = [](const std::string& more) {
    return read(R"({"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 4, "vocab_size": 100)" +
                more + "}");
  };
  const auto mixed = neo(R"(, "attention_types": [[["global"], 2], [["local", "global"], 1]])");
  ASSERT_TRUE(mixed) << to_text(mixed.error());
  EXPECT_EQ(mixed->sliding_window, 256) << "the class's own";
  EXPECT_THAT(mixed->full_attention_layers.listed, ElementsAre(0, 1, 3));
  EXPECT_EQ(mixed->activation, Activation::kGeluNew);
  EXPECT_EQ(mixed->ffn, 256);
  EXPECT_EQ(mixed->position_table, 2048);
  EXPECT_TRUE(mixed->tied_embeddings);
  const auto global = neo(R"(, "attention_types": [[["global"], 4]])");
  ASSERT_TRUE(global) << to_text(global.error());
  EXPECT_EQ(global->sliding_window, 0);
  EXPECT_THAT(to_text(neo("").error()), HasSubstr("\"attention_types\" is missing"));
  EXPECT_THAT(to_text(neo(R"(, "attention_types": [[["global", "local"], 1]])").error()),
              HasSubstr("2 entries for 4 layers"));
  EXPECT_THAT(to_text(neo(R"(, "attention_types": [["global", "local"], 2])").error()),
              HasSubstr("kinds of attention cannot be read; expected as in"));
  EXPECT_THAT(to_text(neo(R"(, "attention_types": [[["global", "odd"], 2]])").error()),
              HasSubstr("attention of \"odd\" cannot be forecast"));
}

// XGLM has positions without weights, DistilBERT sees later tokens, too.
TEST(HuggingFace, OldModelsHaveTheirOwnPositions) {
  const auto xglm = read(R"({"model_type": "xglm", "attention_heads": 4, "d_model": 64, "ffn_dim": 256,
      "num_layers": 2, "vocab_size": 100})");
  ASSERT_TRUE(xglm) << to_text(xglm.error());
  EXPECT_EQ(xglm->position, PositionKind::kLearned);
  EXPECT_EQ(xglm->position_table, 0);
  EXPECT_FALSE(xglm->bidirectional);
  EXPECT_TRUE(xglm->dropout);
  const auto bert = read(R"({"model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"],
      "dim": 64, "hidden_dim": 256, "n_heads": 4, "n_layers": 2, "vocab_size": 100})");
  ASSERT_TRUE(bert) << to_text(bert.error());
  EXPECT_TRUE(bert->bidirectional);
  EXPECT_TRUE(bert->embedding_norm);
  EXPECT_EQ(bert->position_table, 512);
  EXPECT_EQ(bert->labels, 2);
}

// LlamaConfig takes hidden_size // num_attention_heads: 4100 / 32.
TEST(HuggingFace, HeadsThatDoNotDivideTheHiddenSizeAreTold) {
  const auto llama_of = [](const std::string& more) {
    return read(R"({"model_type": "llama", "hidden_size": 4100, "num_attention_heads": 32, "num_hidden_layers": 2,
                    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048)" +
                more + "}");
  };
  const auto uneven = llama_of("");
  ASSERT_TRUE(uneven) << to_text(uneven.error());
  EXPECT_EQ(uneven->head_dim, 128);
  EXPECT_THAT(uneven->warnings,
              ::testing::ElementsAre(
                  "no \"head_dim\", and 32 heads do not divide the hidden size 4100: heads of 128 are taken"));
  EXPECT_TRUE(llama_of(R"(, "head_dim": 128)")->warnings.empty());
}

// A multimodal file whose text model has no key of its own.
TEST(HuggingFace, EncodersBesideTheTextModelAreTold) {
  const auto qwen = read(R"({"model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944,
      "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
      "vision_config": {"depth": 32}})");
  ASSERT_TRUE(qwen) << to_text(qwen.error());
  EXPECT_THAT(qwen->warnings, ::testing::Contains(HasSubstr("\"vision_config\" is left out")));
}

// The text half of a multimodal file, with what its class adds to sparse keys.
TEST(HuggingFace, NestedLanguageModelIsReadAlone) {
  const auto gemma = read(R"({"model_type": "gemma3", "vision_config": {"hidden_size": 1152},
      "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                      "num_hidden_layers": 34, "sliding_window": 1024}})");
  ASSERT_TRUE(gemma) << to_text(gemma.error());
  EXPECT_THAT(gemma->warnings, ::testing::Contains(HasSubstr("only \"text_config\" is read")));
  EXPECT_EQ(gemma->heads, 8);
  EXPECT_EQ(gemma->head_dim, 256);
  EXPECT_EQ(gemma->norm_placement, NormPlacement::kSandwich);
  EXPECT_EQ(gemma->qk_norm, QueryKeyNorm::kHead);
  EXPECT_EQ(gemma->activation, Activation::kGeglu);
  EXPECT_TRUE(gemma->tied_embeddings);
  EXPECT_EQ(gemma->full_attention_layers.every, 6);
  const Model catalog = *Catalog::built_in().model("gemma3-4b");
  EXPECT_EQ(model_parameters(*gemma).layers, model_parameters(catalog).layers);

  const auto llama = read(R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text",
      "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
      "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128,
      "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "no_rope_layers": [],
      "use_qk_norm": false, "vocab_size": 202048, "max_position_embeddings": 1048576}})");
  ASSERT_TRUE(llama) << to_text(llama.error());
  const Model maverick = *Catalog::built_in().model("llama4-maverick");
  EXPECT_EQ(llama->moe, maverick.moe);
  EXPECT_EQ(llama->ffn, maverick.ffn);
  EXPECT_EQ(llama->chunked_attention, maverick.chunked_attention);
  EXPECT_EQ(llama->full_attention_layers, maverick.full_attention_layers);
  EXPECT_EQ(llama->no_rotary_layers, maverick.no_rotary_layers);
  EXPECT_EQ(model_parameters(*llama).total(), model_parameters(maverick).total());
}

// LLaVA's file tells of its Llama the vocabulary alone; InternVL's has a hidden size of its own beside its Qwen.
TEST(HuggingFace, NestedLanguageModelsHaveTheSizesOfTheirClass) {
  const std::string sparse = R"({"model_type": "llama", "vocab_size": 32064})";
  const auto llava = read(R"({"model_type": "llava", "vision_config": {}, "text_config": )" + sparse + "}");
  ASSERT_TRUE(llava) << to_text(llava.error());
  EXPECT_NEAR(model_parameters(*llava).total() / 6.74e9, 1, 3e-3);
  EXPECT_THAT(to_text(read(sparse).error()), HasSubstr("key \"num_hidden_layers\" is missing"));
  const auto mistral = read(R"({"model_type": "llava", "text_config": {"model_type": "mistral",
      "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 32064}})");
  ASSERT_TRUE(mistral) << to_text(mistral.error());
  EXPECT_NEAR(model_parameters(*mistral).total() / 7.24e9, 1, 3e-3);
  const auto intern = read(R"({"model_type": "internvl_chat", "hidden_size": 896, "llm_config": {"model_type": "qwen2",
      "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
      "num_hidden_layers": 24, "vocab_size": 151674, "quantization_config": {}, "index_topk": 8}})");
  ASSERT_TRUE(intern) << to_text(intern.error());
  EXPECT_TRUE(intern->qkv_bias);
  EXPECT_THAT(intern->warnings, ::testing::Contains(HasSubstr("\"quantization_config\" is left out")));
  EXPECT_THAT(intern->warnings, ::testing::Contains(HasSubstr("\"index_topk\" is left out")));
}

// DeepSeek-VL2: what its language model leaves out is that of DeepSeek-V2's class, but for what its versions differ in.
TEST(HuggingFace, LatentAttentionHasTheSizesOfItsClass) {
  const auto vl2 = [](const std::string& more) {
    return read(R"({"model_type": "deepseek_vl_v2", "vision_config": {}, "language_config": {"first_k_dense_replace": 1,
        "hidden_size": 2560, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 72,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "num_hidden_layers": 30, "topk_method": "greedy")" +
                more + "}}");
  };
  const auto sparse = vl2(R"(, "model_type": "deepseek_v2", "q_lora_rank": null, "vocab_size": 129280)");
  ASSERT_TRUE(sparse) << to_text(sparse.error());
  EXPECT_EQ(sparse->mla, (LatentAttention{0, 512, 128, 64, 128}));
  EXPECT_EQ(sparse->heads, 32);
  EXPECT_EQ(sparse->ffn, 12288);
  // Without a type of its own, with compressed queries.
  const auto outer = vl2(R"(, "vocab_size": 129280)");
  ASSERT_TRUE(outer) << to_text(outer.error());
  EXPECT_EQ(outer->mla, (LatentAttention{1536, 512, 128, 64, 128}));
  // The tiny one has ordinary attention, and says 0 or null for the rest.
  const auto tiny = vl2(R"(, "kv_lora_rank": null, "num_attention_heads": 10, "q_lora_rank": null,
      "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "use_mla": false, "v_head_dim": 0, "vocab_size": 129280)");
  ASSERT_TRUE(tiny) << to_text(tiny.error());
  EXPECT_FALSE(tiny->mla);
  EXPECT_EQ(tiny->head_dim, 256);
  const auto none = vl2("");
  ASSERT_FALSE(none);
  EXPECT_THAT(to_text(none.error()), HasSubstr("language_config: key \"vocab_size\" is missing"));
  EXPECT_FALSE(read(R"({"model_type": "deepseek_v2", "hidden_size": 2560, "intermediate_size": 12288,
      "n_routed_experts": 72, "num_experts_per_tok": 6, "num_hidden_layers": 30, "kv_lora_rank": 512,
      "vocab_size": 129280})"))
      << "a file of its own leaves out nothing";
}

// A file may leave out what its class has by default (Qwen3MoeConfig).
TEST(HuggingFace, ExpertsHaveTheSizesOfTheirClass) {
  const Model model = *read(R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 100})");
  ASSERT_TRUE(model.moe);
  EXPECT_EQ(model.moe->experts, 128);
  EXPECT_EQ(model.moe->top_k, 8);
  EXPECT_EQ(model.moe->expert_ffn, 768);
}

// What stands in a file of a type that no row names counts, and not what the nearest class does besides.
TEST(HuggingFace, AnUnknownTypeHasTheWindowsOfItsFileAndNoHiddenNorms) {
  const std::string body = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16,
      "num_hidden_layers": 4, "vocab_size": 100, "num_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "sliding_window": 32, "layer_types": ["sliding_attention", "sliding_attention",
      "sliding_attention", "full_attention"])";
  const Model own = *read(R"({"model_type": "a_new_moe", )" + body + "}");
  EXPECT_EQ(own.family, "qwen3_moe");
  EXPECT_EQ(own.sliding_window, 32);
  EXPECT_EQ(own.full_attention_layers.every, 4);
  EXPECT_EQ(own.qk_norm, QueryKeyNorm::kNone);
  EXPECT_EQ(read(R"({"model_type": "a_new_moe", "qk_norm": true, )" + body + "}")->qk_norm, QueryKeyNorm::kHead);
  const Model qwen = *read(R"({"model_type": "qwen3_moe", )" + body + "}");
  EXPECT_EQ(qwen.sliding_window, 0) << "use_sliding_window is false where Qwen's files leave it out";
  EXPECT_EQ(qwen.qk_norm, QueryKeyNorm::kHead);
  const Model half =
      *read(R"({"model_type": "a_new_glm", "n_routed_experts": 8, "first_k_dense_replace": 1, )" + body + "}");
  EXPECT_EQ(half.family, "glm4_moe");
  EXPECT_EQ(half.rotary_dim, 0);
}

// Numbers of single layers are those of all layers with a window, or of all others.
TEST(HuggingFace, NumbersOfSingleLayersAreOfAllOfTheirKind) {
  const auto gemma = [](const std::string& layers) {
    return read(R"({"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "head_dim": 16, "num_hidden_layers": 4, "vocab_size": 100, "sliding_window": 32, "layer_types":
        ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "per_layer_config": )" +
                layers + "}");
  };
  const auto read_as = gemma(R"({"01": {"head_dim": 32}, "03": {"head_dim": 32, "num_key_value_heads": 2}})");
  ASSERT_TRUE(read_as) << to_text(read_as.error());
  EXPECT_EQ(read_as->head_dim, 32);
  EXPECT_EQ(read_as->kv_heads, 2);
  EXPECT_EQ(read_as->windowed_heads, (AttentionHeads{4, 4, 16}));
  EXPECT_THAT(to_text(gemma(R"({"1": {"head_dim": 32}, "3": {"head_dim": 64}})").error()),
              HasSubstr("per_layer_config: layers of different sizes cannot be forecast"));
  EXPECT_THAT(to_text(gemma(R"({"9": {"head_dim": 32}})").error()), HasSubstr("\"9\" is no layer"));
  EXPECT_THAT(to_text(gemma(R"({"1": {"num_local_experts": 8}})").error()), HasSubstr("\"num_local_experts\""));
}

// What a searched architecture may have that cannot be forecast, and what contradicts itself, at its key.
TEST(HuggingFace, SearchedArchitecturesAreCheckedLayerByLayer) {
  const auto nas = [](const std::string& attention, const std::string& ffn) {
    return read(R"({"model_type": "nemotron-nas", "hidden_size": 768, "num_attention_heads": 4, "num_hidden_layers": 2,
        "vocab_size": 100, "block_configs": [
        {"attention": {"n_heads_in_group": 2, "no_op": false}, "ffn": {"ffn_mult": 1, "no_op": false}},
        {"attention": )" +
                attention + R"(, "ffn": )" + ffn + "}]}");
  };
  const std::string mlp = R"({"ffn_mult": 3, "no_op": false})";
  const auto fine = nas(R"({"no_op": true})", mlp);
  ASSERT_TRUE(fine) << to_text(fine.error());
  EXPECT_EQ(fine->ffn_of_layers, (std::vector<std::int64_t>{512, 1536}));
  EXPECT_EQ(fine->kv_heads, 2);
  EXPECT_EQ(layer_kind(*fine, 1).mixer, Mixer::kNone);
  for (const auto& [attention, ffn, message] :
       {std::tuple(R"({"n_heads_in_group": 4})", mlp, "groups of 2 and of 4 heads cannot be forecast"),
        std::tuple(R"({"replace_with_linear": true})", mlp, "a matrix in the place of the attention of layer 1"),
        std::tuple(R"({"no_op": true})", std::string(R"({"no_op": true})"),
                   "block_configs: layer 1 has neither attention nor an MLP")}) {
    const auto wrong = nas(attention, ffn);
    ASSERT_FALSE(wrong) << attention;
    EXPECT_THAT(to_text(wrong.error()), HasSubstr(message));
  }
}

// transformers 5 writes other names of layers than the files that it reads.
TEST(HuggingFace, LayersHaveOldAndNewNames) {
  const auto granite = [](const std::string& types) {
    return read(R"({"model_type": "granitemoehybrid", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "mamba_n_heads": 4, "mamba_d_head": 32,
        "mamba_d_state": 16, "num_local_experts": 0, "layer_types": )" +
                types + "}");
  };
  EXPECT_EQ(granite(R"(["mamba", "attention"])")->layer_pattern, "M-*-");
  EXPECT_EQ(*granite(R"(["linear_attention", "full_attention"])"), *granite(R"(["mamba", "attention"])"));
  EXPECT_THAT(to_text(granite(R"(["conv", "full_attention"])").error()),
              HasSubstr("layer_types/0: layers of \"conv\" cannot be forecast"));
  const auto sparse = read(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
      "layer_types": ["full_attention", "indexed_attention"]})");
  ASSERT_TRUE(sparse) << to_text(sparse.error());
  EXPECT_THAT(sparse->warnings, ElementsAre("attention of \"indexed_attention\" is forecast as that of all tokens"));
}

// EXAONE 4 names its layers by letters; without a window all have positions.
TEST(HuggingFace, LettersNameTheLayersWithAWindow) {
  const auto exaone = [](const std::string& more) {
    return read(R"({"model_type": "exaone4", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 8, "vocab_size": 100, )" +
                more + "}");
  };
  const Model windowed = *exaone(R"("sliding_window": 32, "sliding_window_pattern": "LLLG")");
  EXPECT_EQ(windowed.full_attention_layers.every, 4);
  EXPECT_EQ(windowed.no_rotary_layers.every, 4);
  const Model whole = *exaone(R"("sliding_window": null)");
  EXPECT_EQ(whole.no_rotary_layers, LayerSet());
  EXPECT_THAT(to_text(exaone(R"("sliding_window": 32, "sliding_window_pattern": "LX")").error()),
              HasSubstr("\"LX\" is no pattern of layers; expected a number, or L"));
}

// Python's json writes them, and no JSON parser takes them: Nemotron-H's "time_step_limit".
TEST(HuggingFace, InfiniteNumbersAreReadAsMissing) {
  const std::string body = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 8, "vocab_size": 100)";
  const auto model =
      read(R"({"model_type": "llama", "a": [0.0, Infinity, -Infinity, NaN], "_name_or_path": "NaN", )" + body + "}");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->name, "NaN");
  const std::string mistake = R"({"model_type": "llama", "a": Infinity,} )";
  EXPECT_THAT(to_text(read(mistake).error()), HasSubstr("config.json:1:39: this is not JSON"));
  EXPECT_FALSE(read(R"({"schema": "ns-dist/model/1", "id": NaN})"));
}

// A type that nobody knows, of a class that is known: what that class does without saying so holds.
TEST(HuggingFace, TheClassDecidesWhereTheTypeIsNotKnown) {
  const auto read_with = [](const std::string& of_class) {
    return read(R"({"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512, )" +
                of_class + "}");
  };
  const auto gemma = read_with(R"("architectures": ["Gemma3ForCausalLM"])");
  ASSERT_TRUE(gemma) << to_text(gemma.error());
  EXPECT_EQ(gemma->family, "gemma3_text");
  const auto own = read_with(R"("model_type": "my_qwen", "architectures": ["Qwen3ForCausalLM"])");
  ASSERT_TRUE(own) << to_text(own.error());
  EXPECT_EQ(own->family, "qwen3");
  EXPECT_THAT(own->warnings, Contains(HasSubstr("\"my_qwen\" is not known: read as qwen3")));
  const auto other = read_with(R"("model_type": "my_qwen", "architectures": ["Qwen3AudioForCausalLM"])");
  ASSERT_TRUE(other) << to_text(other.error());
  EXPECT_EQ(other->family, "llama") << "another class";
}

// A type that nobody knows, whose name goes on from one that is known: what the latter does without saying so holds,
// unless the keys are those of another kind of models.
TEST(HuggingFace, TheBeginningOfATypeDecidesWhereTheTypeIsNotKnown) {
  const auto read_as = [](const std::string& type, const std::string& more = "") {
    const auto model = read(fmt::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 100,
        "tie_word_embeddings": false{}}})",
                                        type, more));
    EXPECT_TRUE(model) << to_text(model.error());
    return *model;
  };
  const Model glm = read_as("glm4v");
  EXPECT_EQ(glm.family, "glm4v_text");
  EXPECT_EQ(glm.norm_placement, NormPlacement::kSandwich);
  EXPECT_EQ(glm.rotary_dim, 8);
  EXPECT_THAT(glm.warnings, ElementsAre("model_type \"glm4v\" is not known: read as glm4v_text, by its name"));
  const Model asr = read_as("qwen3_asr_text", R"(, "num_key_value_heads": 2)");
  EXPECT_EQ(asr.family, "qwen3");
  EXPECT_EQ(asr.qk_norm, QueryKeyNorm::kHead);
  EXPECT_EQ(asr.sequence, 32768) << "Qwen3's own";
  const std::string experts = R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
  const Model omni = read_as("qwen3_omni_moe_text", experts);
  EXPECT_EQ(omni.family, "qwen3_moe");
  EXPECT_EQ(omni.qk_norm, QueryKeyNorm::kHead);
  EXPECT_EQ(read_as("qwen3_5", R"(, "linear_num_value_heads": 32, "linear_key_head_dim": 16)").family, "qwen3_5_text");
  EXPECT_EQ(read_as("ernie4_5_vl", experts).family, "ernie4_5_moe");
  EXPECT_EQ(read_as("stablelm_epoch").norm, NormalizationKind::kLayerNorm);
  // Other versions, other words, other kinds.
  for (const char* other : {"qwen4", "phi4_new", "glm4_6", "glmasr", "optimus", "minicpmdense"}) {
    EXPECT_EQ(read_as(other).family, "llama") << other;
  }
  EXPECT_EQ(read_as("mistral_new", experts).family, "qwen3_moe");
  EXPECT_EQ(read_as("mistral_new", experts).qk_norm, QueryKeyNorm::kNone);
  EXPECT_EQ(read_as("qwen2_moe_dense").family, "qwen2") << "without experts";
}

TEST(HuggingFace, GroupsLimitTheExpertsOfAToken) {
  const auto groups = [](const std::string& type, const std::string& more) {
    const auto model = read(fmt::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "max_position_embeddings": 128 {}}})",
                                        type, more));
    EXPECT_TRUE(model) << to_text(model.error());
    return std::pair{model->moe->groups, model->moe->top_groups};
  };
  EXPECT_EQ(groups("deepseek_v3", R"(, "n_group": 4, "topk_group": 2)"), (std::pair<std::int64_t, std::int64_t>(4, 2)));
  EXPECT_EQ(groups("deepseek_v3", ""), (std::pair<std::int64_t, std::int64_t>(8, 4))) << "the class's own";
  EXPECT_EQ(groups("deepseek_v2", R"(, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3)"),
            (std::pair<std::int64_t, std::int64_t>(8, 3)));
  EXPECT_EQ(groups("deepseek_v2", R"(, "topk_method": "greedy", "n_group": 8, "topk_group": 3)"),
            (std::pair<std::int64_t, std::int64_t>(1, 1)));
  EXPECT_EQ(groups("glm4_moe", R"(, "n_group": 1, "topk_group": 1)"), (std::pair<std::int64_t, std::int64_t>(1, 1)));
}

TEST(HuggingFace, LayersDifferAsTheFileSays) {
  const std::string keys = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
                              "num_hidden_layers": 6, "vocab_size": 100)";
  const auto with = [&](const std::string& more) { return read(fmt::format("{{{}, {}}}", keys, more)); };
  const auto listed = with(R"("model_type": "gpt_oss", "num_key_value_heads": 4, "num_local_experts": 4,
      "sliding_window": 128, "layer_types":
      ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
       "sliding_attention"])");
  ASSERT_TRUE(listed) << to_text(listed.error());
  EXPECT_THAT(listed->full_attention_layers.listed, ElementsAre(0, 3));
  EXPECT_EQ(listed->moe->top_k, 4) << "the class's own";
  EXPECT_TRUE(listed->bias);
  EXPECT_TRUE(listed->attention_sinks);

  const auto sparse = with(R"("model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  ASSERT_TRUE(sparse) << to_text(sparse.error());
  EXPECT_THAT(sparse->moe->layers.listed, ElementsAre(1, 5));
  EXPECT_EQ(layer_kind(*sparse, 3).feed_forward, FeedForward::kDense);
  EXPECT_EQ(layer_kind(*sparse, 5).feed_forward, FeedForward::kExperts);

  const auto windowed = with(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 256,
      "max_window_layers": 4)");
  ASSERT_TRUE(windowed) << to_text(windowed.error());
  EXPECT_THAT(windowed->full_attention_layers.listed, ElementsAre(0, 1, 2, 3));

  const auto unrotated = with(R"("model_type": "smollm3", "no_rope_layers": [1, 1, 0, 1, 1, 0])");
  ASSERT_TRUE(unrotated) << to_text(unrotated.error());
  EXPECT_EQ(unrotated->no_rotary_layers.every, 3);
  EXPECT_FALSE(layer_kind(*unrotated, 2).windowed);
  EXPECT_FALSE(layer_kind(*unrotated, 2).rotary);

  EXPECT_THAT(to_text(with(R"("model_type": "qwen3", "layer_types": ["linear_attention", "full_attention",
      "full_attention", "full_attention", "full_attention", "full_attention"])")
                          .error()),
              HasSubstr("layers of \"linear_attention\" cannot be forecast"));
}

TEST(HuggingFace, SequencesAreThoseBeforePositionsWereStretched) {
  const std::string keys = R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 131072)";
  const auto plain = read("{" + keys + "}");
  EXPECT_EQ(plain->sequence, 131072);
  EXPECT_THAT(warnings_of(*plain), ElementsAre(HasSubstr("training/sequence sets others")));
  const auto scaled = read("{" + keys + R"(, "rope_scaling": {"original_max_position_embeddings": 8192}})");
  EXPECT_EQ(scaled->sequence, 8192);
  EXPECT_THAT(warnings_of(*scaled), IsEmpty());
}

// "max_position_embeddings", or what a factor of a file makes of the positions that it stretches.
TEST(HuggingFace, RotaryPositionsAreMadeForSoManyTokens) {
  const auto most = [](const std::string& type, const std::string& more) {
    const auto model = read(fmt::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100{}}})",
                                        type, more));
    EXPECT_TRUE(model) << to_text(model.error());
    return model->most_positions;
  };
  EXPECT_EQ(most("llama", ""), 0) << "not told";
  EXPECT_EQ(most("qwen3", ""), 32768) << "the class's own";
  EXPECT_EQ(most("llama", R"(, "max_position_embeddings": 4096)"), 4096);
  EXPECT_EQ(most("llama", R"(, "max_position_embeddings": 4096, "seq_length": 8192)"), 4096);
  EXPECT_EQ(most("llama", R"(, "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0})"),
            16384);
  EXPECT_EQ(most("llama", R"(, "max_position_embeddings": 131072,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192})"),
            131072);
  EXPECT_EQ(most("qwen2", R"(, "max_position_embeddings": 32768,
      "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"),
            131072);
  EXPECT_EQ(most("gpt_neox", R"(, "max_position_embeddings": 2048)"), 2048);
  EXPECT_EQ(most("bert", R"(, "max_position_embeddings": 512, "type_vocab_size": 2)"), 0) << "learned positions";
}

// transformers, Qwen3NextConfig: three layers of four have the gated delta rule unless "layer_types" tells others.
TEST(HuggingFace, QwensLayersWithTheDeltaRule) {
  const std::string shape =
      R"("hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "num_hidden_layers": 8, "vocab_size": 1000, "max_position_embeddings": 4096)";
  const std::string experts = R"("num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
      "shared_expert_intermediate_size": 512)";
  const auto next =
      read(fmt::format(R"({{"model_type": "qwen3_next", {}, {}, "intermediate_size": 5120}})", shape, experts));
  ASSERT_TRUE(next) << to_text(next.error());
  EXPECT_EQ(next->delta_net, (DeltaNet{16, 32, 128, 128, 4}));
  EXPECT_TRUE(next->attention_gate);
  EXPECT_EQ(next->rotary_dim, 64);
  EXPECT_TRUE(next->moe && next->moe->shared_gate);
  const auto mixers = [](const Model& model) {
    std::string all;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      all += layer_kind(model, layer).mixer == Mixer::kDeltaNet ? 'd' : 'a';
    }
    return all;
  };
  EXPECT_EQ(mixers(*next), "dddaddda");
  EXPECT_THAT(next->warnings, IsEmpty());

  // Qwen3.5: a multimodal model, whose file has no dense width; other sizes of heads, and a layer that predicts
  // further.
  const auto later =
      read(fmt::format(R"({{"model_type": "qwen3_5_moe", "text_config": {{"model_type": "qwen3_5_moe_text",
      {}, {}, "linear_num_value_heads": 64, "linear_conv_kernel_dim": 2, "mtp_num_hidden_layers": 1,
      "rope_parameters": {{"partial_rotary_factor": 0.5}}, "attn_output_gate": false,
      "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention", "linear_attention",
      "full_attention", "linear_attention", "full_attention"]}}}})",
                       shape, experts));
  ASSERT_TRUE(later) << to_text(later.error());
  EXPECT_EQ(later->delta_net, (DeltaNet{16, 64, 128, 128, 2}));
  EXPECT_EQ(mixers(*later), "dadadada");
  EXPECT_FALSE(later->attention_gate);
  EXPECT_EQ(later->prediction_layers, 1);
  EXPECT_EQ(later->rotary_dim, 128);
  EXPECT_EQ(later->ffn, 512);

  const auto newer = read(fmt::format(R"({{"model_type": "qwen4", {}, "intermediate_size": 4096,
      "linear_num_value_heads": 32, "linear_key_head_dim": 64}})",
                                      shape));
  ASSERT_TRUE(newer) << to_text(newer.error());
  EXPECT_EQ(newer->family, "qwen3_5_text");
  EXPECT_EQ(newer->delta_net->key_dim, 64);
  EXPECT_THAT(newer->warnings, ElementsAre(HasSubstr("read as qwen3_5_text, by its keys")));

  const auto window = read(fmt::format(R"({{"model_type": "qwen3_next", {}, {}, "intermediate_size": 5120,
      "layer_types": ["sliding_attention", "", "", "", "", "", "", ""]}})",
                                       shape, experts));
  ASSERT_FALSE(window);
  EXPECT_THAT(to_text(window.error()), HasSubstr("\"full_attention\" or \"linear_attention\""));
}

TEST(HuggingFace, AnUnknownTypeIsReadAsTheNearestFamily) {
  const auto model = read(R"({"model_type": "seed_next", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "n_routed_experts": 8, "kv_lora_rank": 16,
      "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}})");
  ASSERT_TRUE(model) << to_text(model.error());
  EXPECT_EQ(model->family, "deepseek_v3");
  EXPECT_TRUE(model->mla);
  EXPECT_THAT(model->warnings,
              ElementsAre(HasSubstr("model_type \"seed_next\" is not known: read as deepseek_v3, by its keys"),
                          HasSubstr("quantization_config")));
}

TEST(HuggingFace, ErrorsNameWhatIsMissing) {
  const std::string unknown = to_text(read(R"({"model_type": "lama", "hidden_size": 64})").error());
  EXPECT_THAT(unknown, HasSubstr("did you mean \"llama\"?"));
  EXPECT_THAT(unknown, HasSubstr("\"num_hidden_layers\" is missing"));
  EXPECT_THAT(unknown, HasSubstr("\"num_attention_heads\" is missing"));
  const std::string known = to_text(read(R"({"model_type": "llama", "vocab_size": 1})").error());
  EXPECT_THAT(known, HasSubstr("\"num_hidden_layers\" is missing"));
  EXPECT_THAT(known, Not(HasSubstr("is not known")));
  // Layers that are no attention, under the keys of classes that no row names.
  const std::string shape = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100)";
  for (const char* key :
       {"mamba_d_state", "n_mamba_heads", "mb_per_layer", "lru_width", "layer_group_size", "linear_attn_config"}) {
    const auto refused = read(fmt::format(R"({{"model_type": "hybrid", {}, "{}": 2}})", shape, key));
    ASSERT_FALSE(refused) << key;
    EXPECT_THAT(to_text(refused.error()), AllOf(HasSubstr(key), HasSubstr("cannot be forecast")));
  }
  // Keys that make another model, also of known types; a value that says that there is none makes nothing.
  for (const char* more : {R"("total_ut_steps": 4)", R"("block_configs": [{}, {}])", R"("attn_type_list": [1, 0])",
                           R"("ffn_config": {"moe_num_experts": 16})", R"("compress_ratios": [4, 4])",
                           R"("hc_count": 4)", R"("num_hidden_groups": 1)", R"("ple_layer_ids": [1])",
                           R"("conv_dim": [512, 512])", R"("num_attention_heads_per_layer": [4, 8])"}) {
    const auto refused = read(fmt::format(R"({{"model_type": "llama", {}, {}}})", shape, more));
    ASSERT_FALSE(refused) << more;
    EXPECT_THAT(to_text(refused.error()), HasSubstr("cannot be")) << more;
  }
  for (const char* none :
       {R"("loop_num": 1)", R"("attn_type_list": [1, 1])", R"("num_kv_shared_layers": 0)", R"("use_cla": false)"}) {
    const auto plain = read(fmt::format(R"({{"model_type": "llama", {}, {}}})", shape, none));
    EXPECT_TRUE(plain) << to_text(plain.error());
  }
  // A layer that cannot be forecast is told alone: the keys are there.
  const std::string layers = to_text(
      read(fmt::format(R"({{"model_type": "hybrid", {}, "layer_types": ["full_attention", "odd"]}})", shape)).error());
  EXPECT_THAT(layers, HasSubstr("layers of \"odd\" cannot be forecast"));
  EXPECT_THAT(layers, Not(HasSubstr("the keys are not those")));
  const auto odd = read(fmt::format(R"({{"model_type": "llama", {}, "hidden_act": "foobar"}})", shape));
  ASSERT_TRUE(odd);
  EXPECT_THAT(odd->warnings, ElementsAre(HasSubstr("activation \"foobar\" is not known: read as SwiGLU")));
  EXPECT_THAT(to_text(read(R"({"model_type": "nemotron_h", "hidden_size": 64, "intermediate_size": 64,
      "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 9, "hybrid_override_pattern": "M-",
      "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 16})")
                          .error()),
              HasSubstr("2 letters for 3 layers"));
}

// Not as a Llama whose keys are missing.
TEST(HuggingFace, RecurrencesAreRefusedByName) {
  for (const auto& [type, what] :
       {std::pair("rwkv7", "time mixing of RWKV"), std::pair("xlstm", "cells of xLSTM (mLSTM, sLSTM)")}) {
    const auto refused = read(fmt::format(R"({{"model_type": "{}", "hidden_size": 1024, "head_dim": 64,
        "num_heads": 16, "num_hidden_layers": 24, "vocab_size": 65536}})",
                                          type));
    ASSERT_FALSE(refused) << type;
    EXPECT_THAT(to_text(refused.error()), AllOf(HasSubstr("config.json#/model_type"), HasSubstr(what),
                                                HasSubstr("cannot be forecast"), Not(HasSubstr("is missing"))));
  }
}

TEST(HuggingFace, MistakesAreAtTheirOwnKeys) {
  const auto refused = read(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_key_value_heads": 3, "num_hidden_layers": 2, "vocab_size": 100})");
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("config.json#/num_key_value_heads: 3 does not divide 4 heads"));
}

// Each number is possible, their product is not: it would overflow.
TEST(HuggingFace, RefusesProductsThatNoModelHas) {
  const auto refusal = [](const char* hidden, const char* experts, const char* width) {
    const auto found = read(fmt::format(
        R"({{"model_type": "qwen3_moe", "hidden_size": {}, "intermediate_size": 128, "moe_intermediate_size": {},
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 2,
        "vocab_size": 100, "num_experts": {}, "num_experts_per_tok": 1}})",
        hidden, width, experts));
    return found ? std::string() : to_text(found.error());
  };
  EXPECT_EQ(refusal("100000", "1000", "100000"), "");
  EXPECT_THAT(refusal("1000000", "1000", "1000000"),
              HasSubstr("the parameters of all experts' matrices of a kind are 1e+15; expected at most 1e+13"));
  EXPECT_THAT(refusal("100", "1000000", "100"), HasSubstr("the experts are 1e+06; expected at most 1e+05"));
}

// Left out, they would be forecast as a small dense model.
TEST(HuggingFace, ExpertsUnderOtherKeysAreRefused) {
  const std::string keys = R"("model_type": "ernie_next", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100)";
  EXPECT_TRUE(read("{" + keys + R"(, "num_experts": 1, "moe_num_experts": null})"));
  const auto refused = read("{" + keys + R"(, "moe_num_experts": 64, "moe_k": 6})");
  ASSERT_FALSE(refused);
  EXPECT_THAT(to_text(refused.error()), HasSubstr("config.json#/moe_num_experts: experts, but not all keys"));
}

TEST(HuggingFace, AFolderStandsForItsConfiguration) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "Tiny-Llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
      "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100})";
  for (const std::string& reference : {folder.string(), folder.string() + "/"}) {
    const auto model = Catalog::built_in().model(reference);
    ASSERT_TRUE(model) << to_text(model.error());
    EXPECT_EQ(model->id, "Tiny-Llama");
  }
  std::filesystem::remove(folder / "config.json");
  EXPECT_THAT(to_text(Catalog::built_in().model(folder.string()).error()), HasSubstr("a folder with config.json"));
  std::ofstream(folder / "adapter_config.json") << R"({"peft_type": "LORA", "r": 16})";
  for (const std::string& adapter : {folder.string(), (folder / "adapter_config.json").string()}) {
    EXPECT_THAT(to_text(Catalog::built_in().model(adapter).error()),
                HasSubstr("name the model that the adapter is of"));
  }
  std::filesystem::remove(folder / "adapter_config.json");
}

// The sizes of a class stand for those that a file leaves out, the length of sequences, too.
TEST(HuggingFace, SequencesAreThoseOfTheClass) {
  const std::string body = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100})";
  EXPECT_EQ(read(R"({"model_type": "qwen3", )" + body)->sequence, 32768);
  EXPECT_EQ(read(R"({"model_type": "llama", )" + body)->sequence, 2048);
  const auto audio = read(R"({"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2",
      "intermediate_size": 11008, "vocab_size": 156032}})");
  ASSERT_TRUE(audio) << to_text(audio.error());
  EXPECT_EQ(audio->hidden, 4096);
  EXPECT_EQ(audio->layers, 32);
}

// Positions of RoBERTa begin behind the padding token's. Diffusion models say that attention is not causal, and sinks
// have names of their own in MiMo-V2-Flash.
TEST(HuggingFace, WhatFewFilesSay) {
  const std::string body = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100)";
  const auto with = [&](const std::string& type, const std::string& more) {
    return *read(fmt::format(R"({{"model_type": "{}", {}{}}})", type, body, more));
  };
  const Model roberta = with("xlm-roberta", R"(, "max_position_embeddings": 514, "type_vocab_size": 1)");
  EXPECT_EQ(roberta.sequence, 512);
  EXPECT_EQ(roberta.position_table, 514);
  EXPECT_FALSE(with("llama", "").bidirectional);
  EXPECT_TRUE(with("llama", R"(, "is_causal": false)").bidirectional);
  EXPECT_FALSE(with("llama", "").attention_sinks);
  EXPECT_TRUE(with("llama", R"(, "add_swa_attention_sink_bias": true)").attention_sinks);
}

// modeling_deepseek.py: layers whose number from 0 is a multiple of moe_layer_freq have experts.
TEST(HuggingFace, EverySecondLayerFromTheFirstOn) {
  const auto model = read(R"({"model_type": "deepseek_v3", "num_hidden_layers": 5, "hidden_size": 64,
      "intermediate_size": 128, "vocab_size": 100, "num_attention_heads": 4, "kv_lora_rank": 16, "q_lora_rank": null,
      "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 16, "moe_layer_freq": 2,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1})");
  ASSERT_TRUE(model) << to_text(model.error());
  std::string kinds;
  for (std::int64_t layer = 0; layer < 5; ++layer)
    kinds += layer_kind(*model, layer).feed_forward == FeedForward::kExperts ? 'E' : '-';
  EXPECT_EQ(kinds, "--E-E");
}

// Ratios of layers and of the one for multi-token prediction, as DeepSeek writes them, and names, as transformers 5
// does. Both are one model; other ratios cannot be forecast.
TEST(HuggingFace, DeepSeekV4) {
  const std::string shape = R"("model_type": "deepseek_v4", "hc_mult": 4, "head_dim": 512, "hidden_size": 4096,
      "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "moe_intermediate_size": 2048,
      "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 6,
      "num_hidden_layers": 5, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8,
      "o_lora_rank": 1024, "q_lora_rank": 1024, "sliding_window": 128, "vocab_size": 129280)";
  const auto with = [&](const std::string& layers) { return read(fmt::format("{{{}, {}}}", shape, layers)); };
  const auto listed = with(R"("num_hash_layers": 3, "qk_rope_head_dim": 64, "compress_ratios": [0, 0, 4, 128, 4, 0])");
  ASSERT_TRUE(listed) << to_text(listed.error());
  EXPECT_EQ(layer_kind(*listed, 1).compressed_keys, CompressedKeys::kNone);
  EXPECT_EQ(layer_kind(*listed, 2).compressed_keys, CompressedKeys::kSparse);
  EXPECT_EQ(layer_kind(*listed, 3).compressed_keys, CompressedKeys::kDense);
  EXPECT_EQ(prediction_kind(*listed).compressed_keys, CompressedKeys::kNone);
  EXPECT_EQ(layer_kind(*listed, 0).feed_forward, FeedForward::kExperts);
  EXPECT_EQ(listed->residual_streams, 4);
  EXPECT_EQ(listed->compressed->rope_head_dim, 64);
  EXPECT_THAT(warnings_of(*listed), Contains(HasSubstr("loss of the indexer")));
  const auto named = with(R"("partial_rotary_factor": 0.125,
      "layer_types": ["sliding_attention", "sliding_attention", "compressed_sparse_attention",
                      "heavily_compressed_attention", "compressed_sparse_attention"],
      "mlp_layer_types": ["hash_moe", "hash_moe", "hash_moe", "moe", "moe"])");
  ASSERT_TRUE(named) << to_text(named.error());
  EXPECT_EQ(*named, *listed);
  const auto rates = with(R"("compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 64},
      "layer_types": ["sliding_attention", "sliding_attention", "compressed_sparse_attention",
                      "heavily_compressed_attention", "compressed_sparse_attention"])");
  ASSERT_TRUE(rates) << to_text(rates.error());
  EXPECT_EQ(rates->compressed->sparse_ratio, 2);
  EXPECT_EQ(rates->compressed->dense_ratio, 64);
  EXPECT_THAT(to_text(with(R"("compress_ratios": [0, 0, 8, 128, 4, 0])").error()),
              HasSubstr("compress_ratios/2: compressed keys of 8 tokens; expected 0, 4 or 128"));
  EXPECT_THAT(to_text(with(R"("compress_ratios": [0, 0])").error()), HasSubstr("2 numbers for 5 layers"));
  EXPECT_THAT(to_text(with(R"("layer_types": ["sliding_attention"])").error()), HasSubstr("1 entries for 5 layers"));
}

// Files of DeepSeek-V3.2 and GLM-5.2: an indexer beside latents, in every fourth layer from the third on, told in any
// of four ways.
TEST(HuggingFace, IndexersOfLatentAttention) {
  const std::string shape = R"("num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
      "num_attention_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
      "v_head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
      "first_k_dense_replace": 1)";
  const auto with = [&](const std::string& type, const std::string& more) {
    return read(fmt::format(R"({{"model_type": "{}", {}{}}})", type, shape, more));
  };
  const auto deepseek = with("deepseek_v32", R"(, "layer_types": ["deepseek_sparse_attention",
      "deepseek_sparse_attention", "deepseek_sparse_attention", "deepseek_sparse_attention",
      "deepseek_sparse_attention", "deepseek_sparse_attention", "deepseek_sparse_attention",
      "deepseek_sparse_attention"])");
  ASSERT_TRUE(deepseek) << to_text(deepseek.error());
  EXPECT_EQ(*deepseek->indexer, (Indexer{.heads = 64, .head_dim = 128, .top_k = 2048, .shared_layers = {}}));
  EXPECT_EQ(deepseek->moe->top_groups, 4);
  const auto every = with("glm_moe_dsa", R"(, "index_topk": 16, "index_topk_freq": 4, "index_skip_topk_offset": 3)");
  ASSERT_TRUE(every) << to_text(every.error());
  EXPECT_EQ(every->indexer->heads, 32);
  EXPECT_EQ(every->indexer->top_k, 16);
  std::string chooses;
  for (std::int64_t layer = 0; layer < 8; ++layer) chooses += layer_kind(*every, layer).chooses_keys ? 'F' : 'S';
  EXPECT_EQ(chooses, "FFFSSSFS");
  EXPECT_TRUE(prediction_kind(*every).chooses_keys);  // its own
  for (const std::string same :
       {R"("index_topk_pattern": "FFFSSSFS")", R"("index_topk_pattern": ["F", "F", "F", "S", "S", "S", "F", "S"])",
        R"("indexer_types": ["full", "full", "full", "shared", "shared", "shared", "full", "shared"])"}) {
    const auto told = with("glm_moe_dsa", R"(, "index_topk": 16, )" + same);
    ASSERT_TRUE(told) << to_text(told.error());
    EXPECT_EQ(told->indexer, every->indexer) << same;
  }
  EXPECT_THAT(to_text(with("glm_moe_dsa", R"(, "index_topk_pattern": "FFS")").error()),
              HasSubstr("index_topk_pattern: 3 entries for 8 layers"));
  EXPECT_THAT(to_text(with("glm_moe_dsa", R"(, "index_topk_pattern": "SFFFFFFF")").error()),
              HasSubstr("no layer stands before layer 0"));
  EXPECT_THAT(warnings_of(*every), Contains(HasSubstr("loss of the indexer")));
  EXPECT_THAT(every->warnings, ::testing::Not(Contains(HasSubstr("index_topk"))));
  // A type that no row names has the numbers of its file.
  EXPECT_THAT(to_text(with("another", R"(, "index_topk": 16)").error()), HasSubstr("\"index_n_heads\" is missing"));
}

}  // namespace
}  // namespace ns_dist
