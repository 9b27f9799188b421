-- Whether scripts run.
--
-- KEYS[1] a key of the server that is meant; none where there is only one
return 1
