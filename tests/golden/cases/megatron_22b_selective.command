ns-dist --model megatron-22b --gpu a100 --tp 8 --global-batch 4 --micro-batch 4 --flash-attention off --recompute selective --zero 0 --json
