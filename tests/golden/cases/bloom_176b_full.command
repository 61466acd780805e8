ns-dist --model bloom-176b --cluster jean-zay-a100 --nodes 48 --tp 4 --pp 12 --global-batch 2048 --micro-batch 2 --flash-attention off --recompute full --json
