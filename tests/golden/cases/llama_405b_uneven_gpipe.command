ns-dist --model llama3.1-405b --gpu gb200 --tp 8 --pp 18 --nodes 4 --global-batch 144 --schedule gpipe --json
