-- Returns the number of the last change of documents, and the horizon: up to this version the shard has had all documents,
-- and those that it does not have were removed when the last change had this number.
local function document_horizon()
  local version, removed = string.match(call('HGET', P .. 'documents', '') or '', '^(%d+) (%d+)')
  local top = call('ZRANGE', P .. 'documents.order', '-1', '-1', 'WITHSCORES')[2] or 0
  return math.max(top + 0, (removed or 0) + 0), (version or 0) + 0, (removed or 0) + 0
end
