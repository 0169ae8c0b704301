"""The command `dippm`: parse, call the public function, show the answer."""
