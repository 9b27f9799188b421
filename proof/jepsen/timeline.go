package jepsen

func (r *Report) timeline() ([]byte, error) { return []byte("<svg/>\n"), nil }
