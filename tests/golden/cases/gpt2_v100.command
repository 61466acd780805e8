ns-dist --model gpt2 --gpu v100 --dtype fp16 --global-batch 64 --micro-batch 8 --json
