ns-dist --model mixtral-8x7b --gpu h200-sxm --nodes 8 --tp 2 --ep 8 --global-batch 256 --overlap all --json
