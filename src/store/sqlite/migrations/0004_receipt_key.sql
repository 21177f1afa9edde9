-- Version 4: the key by which the server recognizes its receipts, 16 bytes; made when the file is opened.
ALTER TABLE shard ADD COLUMN receipt_key BLOB;
