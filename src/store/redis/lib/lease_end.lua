-- Returns the id of the job of a member of `ends`, and its group, if it has one.
local function job_of_end(member)
  local kind = string.byte(member, $tied_end.zero)
  if kind > 1 then return string.sub(member, $end.id) end
  local split = kind == 1 and string.find(member, '\0', $tied_end.id, true)
  if not split then return string.sub(member, $tied_end.id) end
  return string.sub(member, $tied_end.id, split - 1), string.sub(member, split + 1)
end
