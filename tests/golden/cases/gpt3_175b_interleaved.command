ns-dist --tp 8 --pp 16 --dp 8 --vpp 6 --json
